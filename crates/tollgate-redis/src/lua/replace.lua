-- Writes a whole entry that the core decided, by compare-and-swap. A1 its expiry (ms, 0 never), A2 the expiry of the id
-- (ms, 0 never), A3 1 to remember the id and 2 to forget it, A4 the stamp of the charge whose ids of version 3 are forgotten (0
-- none, MAX all). ARGV[3] is the entry it was decided on, ARGV[5] the value of the id, ARGV[6] on the new fields, of which e and p
-- come first.
$fields
local old, e = redis.call('HGET', KEY, 'e') or '', ARGV[7]
if old ~= ARGV[3] then return answer(SAME) end
local version = old:byte()
if version == VERSION then
  local s = redis.call('HGET', KEY, 's')
  if s then
    for _, name in ipairs(older_runs(s)) do redis.call('HDEL', KEY, name) end
    redis.call('HDEL', KEY, 's')
  end
elseif version == e:byte() and A4 < MAX and redis.call('HGET', KEY, 'p') == ARGV[9] then
  redis.call('HDEL', KEY, 's')
  local ids = read('<I2', e, 20)
  if A4 > 0 and ids > 0 then
    local all = redis.call('HGETALL', KEY)
    for j = 1, #all, 2 do
      if sub(all[j], 1, 1) == 'i' and read('<I7', all[j + 1]) == A4 then
        redis.call('HDEL', KEY, all[j])
        ids = max(0, ids - 1)
      end
    end
    e = sub(e, 1, 19) .. pack('<I2', ids) .. sub(e, 22)
  end
else
  redis.call('DEL', KEY)
end
redis.call('HSET', KEY, 'e', e)
for j = 8, #ARGV, 2 do redis.call('HSET', KEY, ARGV[j], ARGV[j + 1]) end
if A1 > 0 then redis.call('PEXPIREAT', KEY, A1) end
if A3 == 1 then
  if FIELD then
    if 32 < redis.call('HLEN', KEY) then
      -- As acquire.lua does.
      local scan = redis.call('HSCAN', KEY, redis.call('HGET', KEY, 'o') or '0', 'COUNT', 8)
      local found = scan[2]
      for j = 1, #found, 2 do
        if found[j]:byte() == 107 and read('<I7', found[j + 1], 15) <= now then redis.call('HDEL', KEY, found[j]) end
      end
      redis.call('HSET', KEY, 'o', scan[1])
    end
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
