-- acquire and charge. This is the script that runs for every call, and it is put together for the kinds of limits that a
-- policy has (script.rs): the server runs a script from its first line each time, so a function or a table would be built
-- anew for each decision, and each string that Lua makes is hashed byte by byte. So the rules of load.lua and change.lua
-- stand here once more, on locals, with one string read and one written; and what is written is the answer. The suite
-- compares both with the core.
--
-- The layout of arguments, entry and answer is in head.lua. Of the numbers of the verb, the first is how long the id is
-- remembered, and the second 1 to charge without deciding, and the
-- third the digest of the shape. ARGV[4] is what is asked for by unit. In what is put together,
-- names with a dollar stand for what
-- depends on the limits: the locals of all of them, their values at first, how they are packed, and what each does.
local KEY, args, SHAPE, ID = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local call, read, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local MAX = 9007199254740991
-- Logs that are longer than this are shortened in an answer.
local SHORT = 256

local told, id_ttl, force, digest = read('<I7I7I7I7', args)
local now = told
if told == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock = now

local e, known
if ID == '' then
  e = call('HGET', KEY, 'e')
else
  local got = call('HMGET', KEY, 'e', ID)
  e, known = got[1], got[2]
end

local at, stamp, writes, ids, ids_look, ids_first, ids_until, settled_until, changed, changed_at, goes =
  now, now, 0, 0, 32, 0, 0, 0, 0, 0, 0
local $names = $zeros
if e then
  -- The digest stands for the version and the shape; other scripts may have left it out.
  if read('<I7', e, 65) ~= digest then
    if e:byte() ~= 3 then return pack('<BI7I4B', 107, clock, 1, e:byte()) end
    if call('HGET', KEY, 'p') ~= SHAPE then
      local all = cmsgpack.pack(call('HGETALL', KEY))
      return pack('<BI7I4', 103, clock, #all) .. all
    end
  end
  local _
  _, at, stamp, writes, ids, ids_look, ids_first, ids_until, settled_until, changed, changed_at, goes, _, $names =
    read('<BI7I7I4I2I2I7I7I7I7I7I6I7$layout', e)
  if now < at then now = at end
  if changed > 0 and changed_at + 3600000000 <= now then changed, changed_at = 0, 0 end
elseif now < 1 then
  stamp = 1
end

-- What is known of the id. The core says what follows from it, also that it was used with other costs.
if known then
  local given, _, stands_until = read('<I7I7I7', known)
  if now < stands_until then
    -- A repeat that took slots is worth nothing once they are gone: then it is a new ask.
    local took, held = false, false
    if force == 0 and sub(known, 22) == ARGV[4] then
$held
    end
    if held or not took then return pack('<BI7I4', 102, clock, #known) .. known .. e end
  end
end

-- When the entry says what an absent one says; what is known of ids comes to it below.
local due, refused = stamp + 1, false
if due < settled_until then due = settled_until end
if changed > 0 and due < changed_at + 3600000000 then due = changed_at + 3600000000 end
$limits

local answer = e or ''
if refused and force == 0 then
  -- A refusal writes nothing and answers with what is there; the core brings it to now, and says what binds.
  if #answer <= SHORT then return pack('<BI7I4', 102, clock, 0) .. answer end
else
  local record
  if ID ~= '' then
    local remembered_until = now + id_ttl
    if ids_look <= ids and ids_first <= now then
      -- Forgets what is too old. The next look is due when there are four times as many as stay, so that an id is looked
      -- at little more than once in its life.
      local all, dead, count = call('HGETALL', KEY), {}, 0
      ids, ids_first, ids_until = 0, MAX, 0
      for j = 1, #all, 2 do
        -- Every other field has a name of one letter.
        if #all[j] > 1 then
          local last = read('<I7', all[j + 1], 15)
          if last <= now then
            count = count + 1
            dead[count] = all[j]
            if all[j] == ID then known = false end
          else
            ids = ids + 1
            if last < ids_first then ids_first = last end
            if ids_until < last then ids_until = last end
          end
        end
      end
      ids_look = (ids < 8) and 32 or 4 * ids
      if 1024 < ids_look then ids_look = 1024 end
      if count > 0 and ids < 1024 then call('HDEL', KEY, unpack(dead)) end
    end
    if 1024 <= ids then return pack('<BI7I4', 106, clock, 0) end
    record = pack('<I7I7I7c0', stamp, now, remembered_until, ARGV[4])
    if ids == 0 or remembered_until < ids_first then ids_first = remembered_until end
    if not known then ids = ids + 1 end
    if ids_until < remembered_until then ids_until = remembered_until end
  end
  if due < ids_until then due = ids_until end

  local ends = goes
  if told == 0 then ends = math.ceil(due / 1000) end
  answer = pack('<BI7I7I4I2I2I7I7I7I7I7I6I7$layout', 3, now, stamp + 1, (writes + 1) % 4294967296, ids, ids_look, ids_first,
    ids_until, settled_until, changed, changed_at, ends, digest, $values)
  if not e then
    if record then
      call('HSET', KEY, 'e', answer, 'p', SHAPE, ID, record)
    else
      call('HSET', KEY, 'e', answer, 'p', SHAPE)
    end
  elseif record then
    call('HSET', KEY, 'e', answer, ID, record)
  else
    call('HSET', KEY, 'e', answer)
  end
  -- With windows and calendars the end seldom moves.
  if ends ~= goes then call('PEXPIREAT', KEY, ends) end
  if #answer <= SHORT then return answer end
end

-- Only an answer with long logs comes here.
$shorten
answer = shortened(answer, now)
if refused and force == 0 then return pack('<BI7I4', 102, clock, 0) .. answer end
return answer
