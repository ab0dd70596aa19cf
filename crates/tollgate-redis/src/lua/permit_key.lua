-- The key that permits are sealed with; ARGV[3] if there is none yet.
local key = redis.call('HGET', KEY, 'key')
if key then return answer(SAME, key) end
redis.call('HSET', KEY, 'key', ARGV[3])
return answer(DONE, ARGV[3])
