-- acquire and charge, straight down: this is the script that runs for every call. The server runs a script from its first
-- line each time, so whatever stands here as a function or a table is built anew for each decision, and costs as much as
-- the decision. And each string that Lua makes is hashed byte by byte. So the rules of load.lua and change.lua stand here
-- once more, on locals, in one pass over the limits that also puts together what is written; and what is written is the
-- answer. The suite compares both with the core.
--
-- The layout of arguments, entry and answer is in head.lua. Of the numbers of the verb, the first is how long the id is
-- remembered, and the second 1 to charge without deciding. ARGV[4] is what is asked for by unit.
local KEY, SHAPE, ID = KEYS[1], ARGV[2], ARGV[3]
local args = ARGV[1]
local read, pack, sub, floor, ceil = struct.unpack, struct.pack, string.sub, math.floor, math.ceil
local MAX = 9007199254740991

local told, id_ttl, force = read('<I7I7I7', args)
local now = told
if told == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock = now

local e, shape, known
if ID == '' then
  local got = redis.call('HMGET', KEY, 'e', 'p')
  e, shape = got[1], got[2]
else
  local got = redis.call('HMGET', KEY, 'e', 'p', ID)
  e, shape, known = got[1], got[2], got[3]
end

-- The fixed part. What `from` points at in `e` comes next.
local version, at, stamp, writes, ids, ids_look, ids_first, ids_until, settled_until, changed, changed_at, goes, from =
  2, now, now, 0, 0, 32, 0, 0, 0, 0, 0, 0, 1
if e then
  version, at, stamp, writes, ids, ids_look, ids_first, ids_until, settled_until, changed, changed_at, goes, from =
    read('<BI7I7I4I2I2I7I7I7I7I7I6', e)
  if version ~= 2 then return pack('<BI7I4B', 107, clock, 1, version) end
  if shape ~= SHAPE then
    local all = cmsgpack.pack(redis.call('HGETALL', KEY))
    return pack('<BI7I4', 103, clock, #all) .. all
  end
  if now < at then now = at end
  if changed_at + 3600000000 <= now then changed, changed_at = 0, 0 end
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
      local place, state = 36, from
      while place <= #args do
        local kind, cost
        kind, cost, place = read('<BI7', args, place)
        place, state = place + 21, state + 14
        if kind == 4 then
          place, state = place + 35, state + 14
        elseif kind == 3 or kind == 5 then
          local length = read('<I4', e, state)
          state = state + 4 + length
          if kind == 5 then
            took = took or cost > 0
            for slot = state - length, state - 1, 21 do
              local expires, whose = read('<I7I7', e, slot)
              held = held or (whose == given and now < expires)
            end
          end
        end
      end
    end
    if held or not took then return pack('<BI7I4', 102, clock, #known) .. known .. e end
  end
end

-- Logs that are longer than this are shortened in an answer.
local SHORT = 256
local long = false
-- When the entry says what an absent one says; what is known of ids comes to it below.
local due = stamp + 1
if due < settled_until then due = settled_until end
if changed > 0 and due < changed_at + 3600000000 then due = changed_at + 3600000000 end
local states, place, size = '', 36, #args
local refused = false
while place <= size do
  local kind, cost, most, x, y
  kind, cost, most, x, y, place = read('<BI7I7I7I7', args, place)
  local used, closed, idle = 0, 0, 0
  if kind == 1 then
    if e then used, closed, from = read('<I7I7', e, from) end
    used = used - y * (now - at)
    if used < 0 then used = 0 end
    used = used + cost * x
    if most < used and cost > 0 then refused = true end
    if MAX < used then used = MAX end
    idle = now + ceil(used / y)
    states = states .. pack('<I7I7', used, closed)
  elseif kind == 4 then
    local ends, late = 0, 0
    if e then used, closed, ends, late, from = read('<I7I7I7I7', e, from) end
    local first, last, next_first, next_last, _
    first, last, next_first, next_last, _, place = read('<I7I7I7I7I7', args, place)
    if ends <= now then
      local start, stop = first, last
      if now < first or last <= now then start, stop = next_first, next_last end
      -- The caller's clock is in another window: it sends the windows of this time.
      if now < start or stop <= now then return pack('<BI7I4I7', 104, clock, 7, now) end
      used = (start == ends) and late or 0
      ends, late = stop, 0
    end
    used = used + cost
    if most < used and cost > 0 then refused = true end
    if MAX < used then used = MAX end
    if ends - x <= now then
      late = late + cost
      if MAX < late then late = MAX end
    end
    idle = ends
    -- What came late counts in the next window too.
    if late > 0 then idle = (ends == last) and next_last or ends + 2 * (next_last - next_first) end
    states = states .. pack('<I7I7I7I7', used, closed, ends, late)
  elseif kind == 3 then
    local length, log = 0, ''
    if e then used, closed, length, from = read('<I7I7I4', e, from) end
    local first, last = from, from + length - 1
    from = from + length
    while first < last do
      local t, amount = read('<I7I7', e, first)
      if now < t + x then break end
      used = used - amount
      first = first + 14
    end
    if most < used + cost and cost > 0 then refused = true end
    if MAX - used < cost then cost = MAX - used end
    local t, amount = 0, 0
    if first < last then
      t, amount = read('<I7I7', e, last - 13)
      idle = t + x
    end
    if cost > 0 then
      used = used + cost
      local filed = now
      if y > 0 then filed = (floor(now / y) + 1) * y end
      if filed <= t then
        log = pack('<I7I7', t, amount + cost)
        last = last - 14
      else
        log = pack('<I7I7', filed, cost)
        idle = filed + x
      end
      if first < last then log = sub(e, first, last) .. log end
      if 14336 < #log then
        -- Each pair becomes one at the later time, so that nothing leaves the window early.
        local halved = {}
        for pair = 1, #log, 28 do
          local t, amount = read('<I7I7', log, pair)
          if pair + 14 <= #log then
            local later, more = read('<I7I7', log, pair + 14)
            t, amount = later, amount + more
          end
          halved[#halved + 1] = pack('<I7I7', t, amount)
        end
        log = table.concat(halved)
      end
    elseif first < last then
      log = sub(e, first, last)
    end
    if SHORT < #log then long = true end
    states = states .. pack('<I7I7I4', used, closed, #log) .. log
  elseif kind == 2 then
    if e then used, closed, from = read('<I7I7', e, from) end
    local period = floor(now / y)
    used = used - x * (period - floor(at / y))
    if used < 0 then used = 0 end
    used = used + cost
    if most < used and cost > 0 then refused = true end
    if MAX < used then used = MAX end
    idle = (period + ceil(used / x)) * y
    states = states .. pack('<I7I7', used, closed)
  elseif kind == 5 then
    local length, log = 0, ''
    if e then used, closed, length, from = read('<I7I7I4', e, from) end
    local first, last = from, from + length - 1
    from = from + length
    while first < last do
      local expires, _, places = read('<I7I7I7', e, first)
      if now < expires then break end
      used = used - places
      first = first + 21
    end
    if first < last then
      log = sub(e, first, last)
      idle = read('<I7', e, last - 20)
    end
    -- Nobody holds a slot by a charge without a decision.
    if cost > 0 and force == 0 then
      if most < used + cost then refused = true end
      used = used + cost
      local expires, behind = now + x, #log + 1
      while behind > 1 and expires < read('<I7', log, behind - 21) do behind = behind - 21 end
      log = sub(log, 1, behind - 1) .. pack('<I7I7I7', expires, stamp, cost) .. sub(log, behind)
      if idle < expires then idle = expires end
    end
    if SHORT < #log then long = true end
    states = states .. pack('<I7I7I4', used, closed, #log) .. log
  else
    return redis.error_reply('ERR this script does not know the rule of a limit')
  end
  if now < closed and cost > 0 then refused = true end
  if due < idle then due = idle end
  if due < closed then due = closed end
end

-- A refusal writes nothing and answers with what is there; the core brings it to now, and says what binds.
if refused and force == 0 then
  local there = e or ''
  if SHORT < #there then there = shortened(there, now) end
  return pack('<BI7I4', 102, clock, 0) .. there
end

local record
if ID ~= '' then
  local remembered_until = now + id_ttl
  if ids_look <= ids and ids_first <= now then
    -- Forgets what is too old. The next look is due when there are twice as many as stay, so that each id is looked at
    -- twice in its life, however many there are.
    local all, dead = redis.call('HGETALL', KEY), {}
    ids, ids_first, ids_until = 0, MAX, 0
    for j = 1, #all, 2 do
      if sub(all[j], 1, 1) == 'i' then
        local _, _, last = read('<I7I7I7', all[j + 1])
        if last <= now then
          dead[#dead + 1] = all[j]
          if all[j] == ID then known = false end
        else
          ids = ids + 1
          if last < ids_first then ids_first = last end
          if ids_until < last then ids_until = last end
        end
      end
    end
    ids_look = (ids < 16) and 32 or 2 * ids
    if 1024 < ids_look then ids_look = 1024 end
    if #dead > 0 and ids < 1024 then redis.call('HDEL', KEY, unpack(dead)) end
  end
  if 1024 <= ids then return pack('<BI7I4', 106, clock, 0) end
  record = pack('<I7I7I7', stamp, now, remembered_until) .. ARGV[4]
  if ids == 0 or remembered_until < ids_first then ids_first = remembered_until end
  if not known then ids = ids + 1 end
  if ids_until < remembered_until then ids_until = remembered_until end
end
if due < ids_until then due = ids_until end

local ends = goes
if told == 0 then ends = ceil(due / 1000) end
e = pack('<BI7I7I4I2I2I7I7I7I7I7I6', 2, now, stamp + 1, (writes + 1) % 4294967296, ids, ids_look, ids_first,
  ids_until, settled_until, changed, changed_at, ends) .. states
if not shape then
  if record then
    redis.call('HSET', KEY, 'e', e, 'p', SHAPE, ID, record)
  else
    redis.call('HSET', KEY, 'e', e, 'p', SHAPE)
  end
elseif record then
  redis.call('HSET', KEY, 'e', e, ID, record)
else
  redis.call('HSET', KEY, 'e', e)
end
-- With windows and calendars the end seldom moves.
if ends ~= goes then redis.call('PEXPIREAT', KEY, ends) end
if long then return shortened(e, now) end
return e
