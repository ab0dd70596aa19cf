-- settle and release. A1 when the permit was given, A2 its stamp, A3 1 if its policy still has the numbers it was given
-- under, A4 1 to release, ARGV[3] what is wanted instead, by limit.
local GIVEN_AT, STAMP, SAME_NUMBERS, RELEASE = A1, A2, A3 == 1, A4 == 1

-- The call of a released permit was not made, so a repeat of its ask is a new one.
local function forget_id()
  local known = RELEASE and recall()
  if not known then return end
  local stamp, at = read('<I7I7', known)
  if stamp ~= STAMP or (STAMP == 0 and at ~= GIVEN_AT) then return end
  if ID then redis.call('DEL', ID) else redis.call('HDEL', KEY, FIELD) end
end

-- The first charge of an ask was in shadow mode and not charged, but has the id.
if STAMP == 0 then
  forget_id()
  return answer(SAME)
end
local stop = load()
if stop then return stop end
local settled = redis.call('HGET', KEY, 's')

-- Gives back what time has not given back already.
local function give_back(i, amount)
  local l, s = L[i], S[i]
  if l.kind == 1 then
    local lows = s.lows
    -- Without a record the bucket was empty since the charge, or the charge asked for none.
    if lows == '' then return end
    local after = 1
    while after < #lows and read('<I7', lows, after) <= STAMP do after = after + 14 end
    local credit = min(amount * l.x, s.used)
    if after < #lows then credit = min(credit, (read('<I7', lows, after + 7))) end
    s.used = s.used - credit
    -- What came later is lowered, so that the next give-back is judged on the corrected history; what it undercuts goes.
    if after < #lows then
      local later = {}
      for pos = after, #lows, 14 do
        local stamp, used = read('<I7I7', lows, pos)
        later[#later + 1] = pack('<I7I7', stamp, max(0, used - credit))
      end
      local lowest, kept = read('<I7', later[1], 8), after - 14
      while kept > 0 and lowest <= read('<I7', lows, kept + 7) do kept = kept - 14 end
      s.lows = sub(lows, 1, kept + 13) .. table.concat(later)
    end
  elseif l.kind == 2 then
    if floor(GIVEN_AT / l.y) == floor(now / l.y) then s.used = max(0, s.used - amount) end
  elseif l.kind == 3 then
    local filed, log = file(l, GIVEN_AT), W[i]
    if filed + l.x <= now then return end
    for pos = 1, #log, 14 do
      local t, held = read('<I7I7', log, pos)
      -- Where it was merged with a later one nothing is given back, so that a younger charge never is.
      if filed < t then return end
      if filed == t then
        local taken = min(amount, held)
        local left = (taken < held) and pack('<I7I7', t, held - taken) or ''
        W[i] = sub(log, 1, pos - 1) .. left .. sub(log, pos + 14)
        s.used = s.used - taken
        return
      end
    end
  elseif l.kind == 4 then
    if GIVEN_AT < s.ends and l.given_last == s.ends then
      s.used = max(0, s.used - amount)
      if s.ends - l.x <= GIVEN_AT then s.late = max(0, s.late - amount) end
    end
  end
end

-- Frees the slots of the permit; whether there were any.
local function free(i)
  local held, out, freed = W[i], {}, false
  for pos = 1, #held, 21 do
    local _, stamp, places = read('<I7I7I7', held, pos)
    if stamp == STAMP then
      S[i].used = S[i].used - places
      freed = true
    else
      out[#out + 1] = sub(held, pos, pos + 20)
    end
  end
  W[i] = table.concat(out)
  return freed
end

-- The runs of settled stamps (head.lua): the newest, and those in fields of their own by the directory.
local settled = redis.call('HGET', KEY, 's')
local lowest, count, oldest, directory, newest = 0, 0, now, '', ''
if settled then
  local length, from
  lowest, count, oldest, length, from = read('<I7I4I7I4', settled)
  directory, newest = sub(settled, from, from + length - 1), sub(settled, from + length)
end

-- Few runs that all stay are the common case. Otherwise `changed` has the fields that are written or, where it says false,
-- deleted at the end.
local few = directory == '' and #newest < 21 * RUNS_SPLIT and now < oldest + PERMIT_TTL
local changed, name_at, runs_at, put_runs
if not few then
  changed = {}
  -- The name of the field at a place of the directory.
  name_at = function(place) return 's' .. sub(directory, place + 7, place + 13) end
  runs_at = function(place)
    local name = name_at(place)
    return changed[name] or redis.call('HGET', KEY, name)
  end
  -- Replaces the runs at a place of the directory, or the newest where there is none.
  put_runs = function(place, runs)
    if not place then
      newest = runs
    elseif runs == '' then
      changed[name_at(place)] = false
      directory = sub(directory, 1, place - 1) .. sub(directory, place + 14)
    else
      changed[name_at(place)] = runs
      directory = sub(directory, 1, place - 1) .. sub(runs, 1, 7) .. sub(directory, place + 7)
    end
  end
end

-- The runs that the stamp belongs to, and how many of them start no later.
local place, runs = nil, newest
if directory ~= '' and (newest == '' or STAMP < read('<I7', newest)) then
  local a, b = 0, #directory / 14 - 1
  while a < b do
    local middle = ceil((a + b) / 2)
    if read('<I7', directory, 14 * middle + 1) <= STAMP then a = middle else b = middle - 1 end
  end
  place = 14 * a + 1
  runs = runs_at(place)
end
local before, past = 0, #runs / 21
while before < past do
  local middle = floor((before + past) / 2)
  if read('<I7', runs, 21 * middle + 1) <= STAMP then before = middle + 1 else past = middle end
end

local expired = GIVEN_AT + PERMIT_TTL <= now
if not expired and before > 0 and STAMP <= read('<I7', runs, 21 * before - 13) then return answer(SAME) end
local too_old, costs_more = STAMP <= lowest, false
for i, l in ipairs(L) do
  l.wanted = read('<I7', ARGV[3], i * 7 - 6)
  costs_more = costs_more or l.cost < l.wanted
end
-- The cost beyond the estimate is charged, however late it is reported.
if expired or (too_old and not costs_more) then
  -- A slot that was renewed outlives its permit's costs: it can always be handed back.
  local freed = false
  for i, l in ipairs(L) do
    if l.kind == 5 then freed = free(i) or freed end
  end
  if not freed then return answer(EXPIRED) end
  forget_id()
  write()
  return answer(DONE)
end

local gives_back = SAME_NUMBERS and not too_old and E.changed <= STAMP
for i, l in ipairs(L) do
  if l.kind == 5 then
    free(i)
  elseif l.wanted < l.cost then
    if gives_back then give_back(i, l.cost - l.wanted) end
  else
    add(i, l.wanted - l.cost)
  end
end

-- Joins the stamp with the runs it touches.
local first, last, youngest, from, upto = STAMP, STAMP, GIVEN_AT, 21 * before, 21 * before + 1
if before > 0 then
  local f, l, y = read('<I7I7I7', runs, from - 20)
  if l + 1 == STAMP then
    first, youngest, from, count = f, max(y, youngest), from - 21, count - 1
  end
end
if upto < #runs then
  local f, l, y = read('<I7I7I7', runs, upto)
  if f == STAMP + 1 then
    last, youngest, upto, count = l, max(y, youngest), upto + 21, count - 1
  end
elseif place then
  -- The first run of the next field, or of the newest.
  local next_place = (place + 14 < #directory) and place + 14 or nil
  local next_runs = next_place and directory or newest
  if next_runs ~= '' and read('<I7', next_runs, next_place or 1) == STAMP + 1 then
    if next_place then next_runs = runs_at(next_place) end
    local _, l, y = read('<I7I7I7', next_runs)
    last, youngest, count = l, max(y, youngest), count - 1
    put_runs(next_place, sub(next_runs, 22))
  end
end
count = count + 1
runs = sub(runs, 1, from) .. pack('<I7I7I7', first, last, youngest) .. sub(runs, upto)

E.stays = max(E.stays, GIVEN_AT + PERMIT_TTL)
forget_id()
if few then
  E.full = 0
  write('s', pack('<I7I4I7I4', lowest, count, (read('<I7', runs, 15)), 0) .. runs)
  return answer(DONE)
end

local at_front = place == 1 or directory == ''
if #runs <= 21 * RUNS_SPLIT then
  put_runs(place, runs)
else
  -- The older half moves out of the newest, or the younger half out of a field, into one with a new name.
  local older, younger = sub(runs, 1, 21 * RUNS_SPLIT / 2), sub(runs, 21 * RUNS_SPLIT / 2 + 1)
  local moved, name, cut = older, pack('<I7', E.writes), #directory
  if place then moved, cut = younger, place + 13 end
  put_runs(place, place and older or younger)
  directory = sub(directory, 1, cut) .. sub(moved, 1, 7) .. name .. sub(directory, cut + 1)
  changed['s' .. name] = moved
end

-- Forgets the oldest runs: those that are too old to come again, and under pressure one whose permits were abandoned.
local function forget_oldest(until_then, most)
  local where = (directory ~= '') and 1 or nil
  local all, pos, last = where and runs_at(where) or newest, 1, 0
  while pos < #all and most > 0 and read('<I7', all, pos + 14) <= until_then do
    last, pos, count, most = read('<I7', all, pos + 7), pos + 21, count - 1, most - 1
  end
  all = sub(all, pos)
  put_runs(where, all)
  if all == '' then all = (directory ~= '') and runs_at(1) or newest end
  oldest = read('<I7', all, 15)
  return last
end
if at_front then oldest = read('<I7', directory ~= '' and runs_at(1) or newest, 15) end
while oldest + PERMIT_TTL <= now do forget_oldest(now - PERMIT_TTL, count) end
if RUNS_MAX < count and oldest + ABANDONED_AFTER <= now then
  -- What was settled just now must be known if it comes again.
  local first_run = (directory ~= '') and directory or newest
  if read('<I7', first_run) ~= first then lowest = max(lowest, forget_oldest(oldest, 1)) end
end
if newest == '' and directory ~= '' then
  local last_place = #directory - 13
  newest = runs_at(last_place)
  put_runs(last_place, '')
end

E.full = (RUNS_MAX <= count) and oldest + ABANDONED_AFTER or 0
local more = {'s', pack('<I7I4I7I4', lowest, count, oldest, #directory) .. directory .. newest}
for name, value in pairs(changed) do
  if value then
    more[#more + 1], more[#more + 2] = name, value
  else
    redis.call('HDEL', KEY, name)
  end
end
write(unpack(more))
return answer(DONE)
