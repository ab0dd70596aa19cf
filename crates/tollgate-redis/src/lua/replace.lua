-- Writes a whole entry that the core decided, if nobody wrote in between. A1 when it goes (ms, 0 never), ARGV[3] the
-- entry it was decided on, ARGV[4] on the new fields.
if (redis.call('HGET', KEY, 'e') or '') ~= ARGV[3] then return answer(SAME) end
redis.call('DEL', KEY)
for j = 4, #ARGV, 2 do redis.call('HSET', KEY, ARGV[j], ARGV[j + 1]) end
if A1 > 0 then redis.call('PEXPIREAT', KEY, A1) end
return answer(DONE)
