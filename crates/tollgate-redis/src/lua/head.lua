-- What every script begins with: the arguments, the time, the entry.
--
-- KEYS[1]  the entry: a hash
-- ARGV[1]  msgpack {now or 0 for the server's clock, limits, what the verb needs}
-- ARGV[2]  the shape of the policy: its limits and their numbers
-- ARGV[3]  the id of the ask, or nothing
--
-- A limit is {kind, cost, numbers..., windows...}, by kind:
--   1 continuous bucket  {1, cost, capacity, fine units per token, fine units per us}
--   2 interval bucket    {2, cost, capacity, refill, period}
--   3 rolling window     {3, cost, limit, window, slot}
--   4 calendar window    {4, cost, limit, margin, 0, start, end, start of the next, end of the next, end at t0}
--   5 slots              {5, cost, limit, ttl}
--
-- The hash: p shape, e header, w1..w16 logs of windows and slots, s settled permits, i<id> remembered asks.
-- The header is {version, at, next stamp, writes, ids, ids until, settled until, changed stamp, changed at} and
-- {kind, a, b, c, closed until} for each limit; a is what is used (a calendar: the end, b used, c late). No id lives
-- longer than `ids until`. Permits below `changed stamp` give nothing back: the numbers changed, and the entry was last
-- written before that at `changed at`; a stamp of 0 says that they did not. Every number is an integer below 2^53.
local KEY, SHAPE = KEYS[1], ARGV[2]
local A = cmsgpack.unpack(ARGV[1])
local L = A[2]
local MAX = 9007199254740991
local IDS_MAX, LOG_BYTES_MAX, RUNS_MAX = 1024, 16 * 1024, 256
local PERMIT_TTL = 3600000000
local FIXED, EACH = 9, 5
local floor, ceil = math.floor, math.ceil
local pack, unpack_at, sub = struct.pack, struct.unpack, string.sub

local told = A[1]
local now = told
if told == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock = now

local function answer(status, extra, header, logs)
  return cmsgpack.pack({status, clock, extra or 0, header or 0, logs or 0})
end

-- Everything there is, for a decision that the core makes.
local function dump(status)
  return answer(status, redis.call('HGETALL', KEY))
end

-- Statuses of an answer.
local DONE, SAME, OTHER_SHAPE, OTHER_WINDOW, EXPIRED, CONTENDED, VERSION = 1, 2, 3, 4, 5, 6, 7
