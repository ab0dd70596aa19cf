-- acquire and charge. This is the hot script, assembled for the kinds of limits of a policy (script.rs). The server runs a
-- script from its first line each time, so a function or a table would be built for each decision, and Lua hashes each new
-- string byte by byte. Therefore the rules of load.lua and change.lua are repeated here on locals, with one string read and
-- one written; the written string is the reply. The suite compares both with the core.
--
-- The layout of arguments, entry and reply is in head.lua, except that ARGV[3] is the field of the id. The numbers of the
-- operation are the TTL of the id, the mode (1 to charge without deciding, plus 2 if the charge is refundable), the digest of
-- the shape, and that of the ask. Names with a dollar are replaced by what depends on the limits: their locals, initial
-- values, packing formats, lows and rules.
local KEY, args, SHAPE, ID, FIELD = KEYS[1], ARGV[1], ARGV[2], KEYS[2], ARGV[3]
local call, read, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local MAX = 9007199254740991
-- Logs that are longer than this are shortened in an answer.
local SHORT = 256

local given_now, id_ttl, mode, digest, asked = read('<I7I7I7I7I7', args)
local force, refundable = mode % 2 == 1, mode > 1
local now = given_now
if given_now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock = now

local e, known
if FIELD then
  local got = call('HMGET', KEY, 'e', FIELD)
  e, known = got[1], got[2]
else
  e = call('HGET', KEY, 'e')
end

$judge
local charges = force or not refused
-- Too many others are not settled yet.
local waits = charges and now < full and refundable and not force
local remembered_until, remembers = now + id_ttl, nil
if ID or FIELD then remembers = pack('<I7I7I7I7', stamp, now, remembered_until, asked) end
if ID then
  -- One command remembers a new id and recalls an old one.
  if not charges or waits then
    known = call('GET', ID)
  elseif given_now == 0 then
    known = call('SET', ID, remembers, 'NX', 'GET', 'PXAT', math.ceil(remembered_until / 1000))
  else
    known = call('SET', ID, remembers, 'NX', 'GET')
  end
end

-- The core says what follows from it, also that it was used with other costs.
if known then
  local given, _, expires, before = read('<I7I7I7I7', known)
$valid
  if is_valid then
    -- A repeat that took slots is worth nothing once they are gone: then it is a new ask.
    local took, held = false, false
    if not force and asked == before then
$held
    end
    if held or not took then
      return pack('<BI7I4', 102, clock, #known) .. known .. (e and sub(e, 1, lows_at - 1) or '')
    end
  end
end

local answer
if not charges then
  -- A refusal writes nothing and answers with what is there; the core brings it to now, and says what binds.
  answer = e or ''
  if lows_at <= #answer then answer = sub(answer, 1, lows_at - 1) end
  if #answer <= SHORT then return pack('<BI7I4', 102, clock, 0) .. answer end
else
  if waits then return pack('<BI7I4', 106, clock, 0) end
  if FIELD then
    if stays < remembered_until then stays = remembered_until end
    if due < stays then due = stays end
  end
  local ends = goes
  if given_now == 0 then ends = math.ceil(due / 1000) end
  answer = pack('<BI7I7I4I7I7I7I7I6I7$layout', 4, now, stamp + 1, (writes + 1) % 4294967296, stays, full, changed, changed_at,
    ends, digest, $values)
  if e then
    call('HSET', KEY, 'e', answer$tails)
  else
    call('HSET', KEY, 'e', answer$tails, 'p', SHAPE)
  end
  if ID and known then
    if given_now == 0 then
      call('SET', ID, remembers, 'PXAT', math.ceil(remembered_until / 1000))
    else
      call('SET', ID, remembers)
    end
  elseif FIELD then
$remember
  end
  -- With windows and calendars the end seldom moves.
  if ends ~= goes then call('PEXPIREAT', KEY, ends) end
  if #answer <= SHORT then return answer end
end

-- Only an answer with long logs comes here.
$shorten
answer = shortened(answer, now, args)
if not charges then return pack('<BI7I4', 102, clock, 0) .. answer end
return answer
