-- acquire and charge of an ask with several charges: judges every entry first, then writes all of them or none. Assembled
-- from the rules of acquire.lua, one function for each sequence of kinds of limits in the ask (script.rs).
--
-- KEYS[1] on   the entries of the charges in one slot, in the order of the ask
-- KEYS[n + 1]  the id of the ask, if it has one and the server is no cluster
-- ARGV[1]      the function of each charge, in one byte
-- ARGV[2]      the field of the id, if there is one and the server is a cluster; or empty
-- ARGV[3]      what the charges in other slots got: stamp and time of each; or empty
-- ARGV[4]      the value of an id that is to be replaced; or empty
-- ARGV[5] on   for each charge the arguments of acquire.lua: its numbers, with 4 added to the mode of a policy in shadow
--              mode, and the shape of its policy
--
-- The id belongs to the first charge. Behind the four numbers of head.lua its value has the stamp and the time of every other
-- charge; the stamp of a charge that shadow mode left out is 0.
--
-- The answer begins as any other. For each charge there follow 1 if it was charged, the length of its entry (four) and its
-- entry. An answer about one charge, which ends the script early, has the index of that charge there instead.
local call, read, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local MAX, SHORT = 9007199254740991, 256
local FUNCTIONS, FIELD, ELSEWHERE, REPLACED = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if FIELD == '' then FIELD = nil end
local COUNT = #FUNCTIONS
local ID = KEYS[COUNT + 1]

local given_now, id_ttl, mode, _, asked = read('<I7I7I7I7I7', ARGV[5])
local force, refundable = mode % 2 == 1, mode % 4 > 1
local clock = given_now
if given_now == 0 then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

local known
if ID then known = call('GET', ID) elseif FIELD then known = call('HGET', KEYS[1], FIELD) end
if known == REPLACED then known = nil end

local judge = {}
$functions
$shorten

local judged, refused, waits, lost = {}, false, false, false
for i = 1, COUNT do
  local args, given = ARGV[2 * i + 3], 0
  if known and i == 1 then
    given = read('<I7', known)
  elseif known and 14 * i < #known then
    given = read('<I7', known, 14 * i + 1)
  end
  local stop, charge = judge[FUNCTIONS:byte(i)](KEYS[i], args, ARGV[2 * i + 4], given, FIELD and i == 1)
  if type(stop) == 'string' then return stop .. string.char(i - 1) end
  if stop then return stop end
  judged[i] = charge
  if charge.answer then
    waits = waits or charge.waits
  elseif read('<I7', args, 15) < 4 then
    refused = true
  end
  lost = lost or charge.lost
end

-- The entries as they are, or after the charge.
local function answer(status, extra, is_whole)
  local all = pack('<BI7I4', status, clock, #extra) .. extra
  for i = 1, COUNT do
    local charge = judged[i]
    local was_charged = status == 101 and charge.answer
    local e = was_charged or charge.e or ''
    if not was_charged and charge.lows_at <= #e then e = sub(e, 1, charge.lows_at - 1) end
    if SHORT < #e and not is_whole then e = shortened(e, charge.now, ARGV[2 * i + 3]) end
    all = all .. pack('<BI4', was_charged and 1 or 0, #e) .. e
  end
  return all
end

if known then
  local given, _, expires, before = read('<I7I7I7I7', known)
  local KEY, now = KEYS[1], judged[1].now
$valid
  -- The core says what follows from it, also that it was used with other costs.
  if is_valid and (force or asked ~= before or not lost) then return answer(102, known, true) end
end
if refused then return answer(102, '') end
-- Too many others are not settled yet.
if waits then return pack('<BI7I4', 106, clock, 0) end

local others = ''
for i = 1, COUNT do
  local KEY, charge = KEYS[i], judged[i]
  if charge.answer then
    if charge.e then
      call('HSET', KEY, 'e', charge.answer .. charge.lows)
    else
      call('HSET', KEY, 'e', charge.answer .. charge.lows, 'p', ARGV[2 * i + 4])
    end
    if charge.ends ~= charge.goes then call('PEXPIREAT', KEY, charge.ends) end
  else
    charge.stamp, charge.now = 0, clock
    if charge.kept then
      call('HSET', KEY, 'e', charge.kept, 'p', ARGV[2 * i + 4])
      if charge.ends ~= charge.goes then call('PEXPIREAT', KEY, charge.ends) end
    end
  end
  if i > 1 then others = others .. pack('<I7I7', charge.stamp, charge.now) end
end
if ID or FIELD then
  local KEY, now = KEYS[1], judged[1].now
  local remembered_until = now + id_ttl
  local remembers = pack('<I7I7I7I7', judged[1].stamp, now, remembered_until, asked) .. others .. ELSEWHERE
  if FIELD then
$remember
  elseif given_now == 0 then
    call('SET', ID, remembers, 'PXAT', math.ceil(remembered_until / 1000))
  else
    call('SET', ID, remembers)
  end
end
return answer(101, '')
