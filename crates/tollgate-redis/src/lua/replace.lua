-- Writes a whole entry that the core decided, if nobody wrote in between. A1 when it goes (ms, 0 never), A2 when the id goes
-- (ms, 0 never), A3 1 to remember the id and 2 to forget it. ARGV[3] is the entry it was decided on, ARGV[5] the value of
-- the id, ARGV[6] on the new fields.
$fields
local old = redis.call('HGET', KEY, 'e') or ''
if old ~= ARGV[3] then return answer(SAME) end
if old:byte() == VERSION then
  local s = redis.call('HGET', KEY, 's')
  if s then
    for _, name in ipairs(older_runs(s)) do redis.call('HDEL', KEY, name) end
    redis.call('HDEL', KEY, 's')
  end
else
  redis.call('DEL', KEY)
end
for j = 6, #ARGV, 2 do redis.call('HSET', KEY, ARGV[j], ARGV[j + 1]) end
if A1 > 0 then redis.call('PEXPIREAT', KEY, A1) end
if A3 == 1 then
  if FIELD then
    redis.call('HSET', KEY, FIELD, ARGV[5])
  elseif A2 > 0 then
    redis.call('SET', ID, ARGV[5], 'PXAT', A2)
  else
    redis.call('SET', ID, ARGV[5])
  end
elseif A3 == 2 then
  if FIELD then redis.call('HDEL', KEY, FIELD) else redis.call('DEL', ID) end
end
return answer(DONE)
