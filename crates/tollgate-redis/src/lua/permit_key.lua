-- The key that permits are sealed with, and a mark of this data; ARGV[3] and ARGV[4] if there are none yet.
local kept = redis.call('HMGET', KEY, 'key', 'mark')
if kept[1] and kept[2] then return answer(SAME, kept[1] .. kept[2]) end
local key, mark = kept[1] or ARGV[3], kept[2] or ARGV[4]
redis.call('HSET', KEY, 'key', key, 'mark', mark)
return answer(DONE, key .. mark)
