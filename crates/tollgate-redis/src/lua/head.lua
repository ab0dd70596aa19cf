-- What the scripts begin with, all but that of acquire: the arguments, the time, the answer.
--
-- KEYS[1]  the entry: a hash
-- KEYS[2]  the id of the ask or permit, if it has one and the server is no cluster: a string
-- ARGV[1]  now (0 for the server's clock), four numbers of the verb, then for each limit its kind in one byte, its cost,
--          and three numbers that depend on the kind:
--            1 continuous bucket  capacity, fine units per token, fine units per us
--            2 interval bucket    capacity, refill, period
--            3 rolling window     limit, window, slot
--            4 calendar window    limit, margin, 0, and five more: start, end, start of the next, its end, end at t0
--            5 slots              limit, time to live, 0
-- ARGV[2]  the shape of the policy: its limits and their numbers
-- ARGV[3]  numbers of the verb, one per limit
-- ARGV[4]  the field of the id, if there is one and the server is a cluster
--
-- The hash has the fields p for the shape, s for settled permits, and e, which has all that a decision changes:
--   version (one byte), at, next stamp, writes (four), stays, full until, changed stamp, changed at, goes (six),
--   digest of the shape
-- then for each limit, by kind:
--   continuous  used, closed until, the length of its lows in bytes (two)
--   interval    used, closed until
--   a window    used, closed until, the length of its log in bytes (four), and the log: time and amount
--   a calendar  used, closed until, end, late
--   slots       used, closed until, the length of their log in bytes (four), and the log: expiry, stamp and places
-- and at the end the lows of each continuous bucket: stamp, and what was used just before the charge with that stamp.
-- Every other number has seven bytes and is an integer below 2^53; all are little-endian. The entry is kept until `stays`
-- at least: settled permits and fields of ids need it. While refundable asks must wait because too many permits are not
-- settled, `full until` is in the future. Permits below `changed stamp` give nothing back: the numbers changed, and the
-- entry was last written before that at `changed at`; a stamp of 0 says that they did not. `goes` is the millisecond in
-- which the key expires, so that it is set only when it changes. A digest of 0 stands for none: then the field p tells.
--
-- The field s has the runs of settled stamps in rising order, each with its first and last stamp and when the youngest of
-- its permits was admitted. A settle rewrites few of them, however many there are: beyond RUNS_SPLIT the older ones are in
-- fields of their own, with the letter s and a name of seven bytes. It has
--   floor, the number of all runs (four), when the youngest permit of the oldest run was admitted, the length of the
--   directory in bytes (four), the directory (for each such field the first stamp of its first run, and its name),
--   and the newest runs.
--
-- An id is a key of its own that expires by itself. Its value is the stamp and the time of the charge, when the id expires, and
-- the digest of the ask. On a cluster it is a field k<id> of the entry instead: a script with two keys, one of them new, is
-- refused for as long as its slot is being moved. The field o is the cursor of the scan for expired ones.
--
-- An answer is a status of one byte, the time, the length of what follows it (four), that, and the field e without lows. A
-- charge that was made is answered with that alone, whose first byte is its version and none of a status.
local KEY, SHAPE, ID, FIELD = KEYS[1], ARGV[2], KEYS[2], ARGV[4]
if FIELD == '' then FIELD = nil end
local MAX, PERMIT_TTL = 9007199254740991, 3600000000
local VERSION = 4
local LOG_BYTES_MAX, LOWS_BYTES_MAX = 14 * 1024, 14 * 64
local RUNS_MAX, RUNS_SPLIT, ABANDONED_AFTER = 10000, 128, 60000000
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, read, sub = struct.pack, struct.unpack, string.sub

local given_now, A1, A2, A3, A4 = read('<I7I7I7I7I7', ARGV[1])
local now = given_now
if given_now == 0 then
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

-- What is known of the id.
local function recall()
  if ID then return redis.call('GET', ID) end
  if FIELD then return redis.call('HGET', KEY, FIELD) end
end

-- Everything there is and what is known of the id, for a decision that the core makes.
local function dump()
$fields
  return answer(OTHER_SHAPE, whole(recall()))
end

-- The field e, or nothing; and a reply if it cannot be read here.
local function fetch()
  local got = redis.call('HMGET', KEY, 'e', 'p')
  local e = got[1]
  if not e then return nil end
  local version = e:byte()
  if version ~= VERSION and version ~= 3 then return nil, answer(OTHER_VERSION, sub(e, 1, 1)) end
  if version ~= VERSION or got[2] ~= SHAPE then return nil, dump() end
  return e
end
