-- What the scripts begin with, all but that of acquire: the arguments, the time, the answer.
--
-- KEYS[1]  the entry: a hash
-- ARGV[1]  now (0 for the server's clock), four numbers of the verb, then for each limit its kind in one byte, its cost,
--          and three numbers that depend on the kind:
--            1 continuous bucket  capacity, fine units per token, fine units per us
--            2 interval bucket    capacity, refill, period
--            3 rolling window     limit, window, slot
--            4 calendar window    limit, margin, 0, and five more: start, end, start of the next, its end, end at t0
--            5 slots              limit, time to live, 0
-- ARGV[2]  the shape of the policy: its limits and their numbers
-- ARGV[3]  the field of the ask's id, or nothing
-- ARGV[4]  numbers of the verb that are as many as units or limits
--
-- The hash has the fields p for the shape, s for settled permits (msgpack), i<id> for remembered asks (stamp, when it
-- was admitted, until when it is remembered, the costs by unit), and e, which has all that a decision changes:
--   version (one byte), at, next stamp, writes (four), ids (two), ids look (two), ids first, ids until, settled until,
--   changed stamp, changed at, goes (six), digest of the shape
-- and for each limit, by kind:
--   a bucket    used, closed until
--   a window    used, closed until, the length of its log in bytes (four), and the log: time and amount
--   a calendar  used, closed until, end, late
--   slots       used, closed until, the length of their log in bytes (four), and the log: expiry, stamp and places
-- Every other number has seven bytes and is an integer below 2^53; all are little-endian. `ids` counts the fields of
-- ids, which are looked through when there are `ids look` of them; the first is forgotten no earlier than `ids first` and
-- the last at `ids until`. Permits below `changed
-- stamp` give nothing back: the numbers changed, and the entry was last written before that at `changed at`; a stamp of 0
-- says that they did not. `goes` is the millisecond in which the key expires, so that it is set only when it changes.
-- A digest of 0 stands for none: then the field p tells.
--
-- An answer is a status of one byte, the time, the length of what follows it (four), that, and the field e. A charge that
-- was made is answered with e alone, whose first byte is its version and none of a status.
local KEY, SHAPE = KEYS[1], ARGV[2]
local MAX, PERMIT_TTL = 9007199254740991, 3600000000
local VERSION, LOG_BYTES_MAX, RUNS_MAX = 3, 14 * 1024, 256
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, read, sub = struct.pack, struct.unpack, string.sub

local told, A1, A2, A3, A4 = read('<I7I7I7I7I7', ARGV[1])
local now = told
if told == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock = now

-- Statuses of an answer.
local DONE, SAME, OTHER_SHAPE, OTHER_WINDOW, EXPIRED, OTHER_VERSION = 101, 102, 103, 104, 105, 107

local function answer(status, extra, e)
  extra = extra or ''
  return pack('<BI7I4', status, clock, #extra) .. extra .. (e or '')
end

-- Everything there is, for a decision that the core makes.
local function dump()
  return answer(OTHER_SHAPE, cmsgpack.pack(redis.call('HGETALL', KEY)))
end

-- The field e, or nothing; and a reply if it cannot be read here.
local function fetch()
  local got = redis.call('HMGET', KEY, 'e', 'p')
  local e = got[1]
  if not e then return nil end
  if e:byte() ~= VERSION then return nil, answer(OTHER_VERSION, sub(e, 1, 1)) end
  if got[2] ~= SHAPE then return nil, dump() end
  return e
end
