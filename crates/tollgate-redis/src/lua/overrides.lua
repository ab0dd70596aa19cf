-- The overrides. ARGV[3] is the version that is known and ARGV[4] what to replace it by, if anything: its version and
-- its text, with a line break between them. The answer to a question is the version and the text if the version is another.
local found = redis.call('HMGET', KEY, 'version', 'text')
local version, text = found[1] or '0', found[2] or ''
local whole = version .. '\n' .. text
if ARGV[4] == '' then
  if version == ARGV[3] then return answer(SAME) end
  return answer(DONE, whole)
end
-- A repeat of what was done.
if whole == ARGV[4] then return answer(DONE) end
if version ~= ARGV[3] then return answer(SAME) end
local border = string.find(ARGV[4], '\n', 1, true)
redis.call('HSET', KEY, 'version', sub(ARGV[4], 1, border - 1), 'text', sub(ARGV[4], border + 1))
return answer(DONE)
