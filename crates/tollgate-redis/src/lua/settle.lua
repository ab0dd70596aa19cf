-- settle and release. A1 when the permit was given, A2 its stamp, A3 1 if its policy still has the numbers it was given
-- under, A4 1 to release, ARGV[4] what is wanted instead, by limit.
local GIVEN_AT, STAMP, SAME_NUMBERS, RELEASE = A1, A2, A3 == 1, A4 == 1
local stop = load()
if stop then return stop end
local settled = redis.call('HGET', KEY, 's')

-- Gives back what time has not given back already.
local function give_back(i, amount)
  local l, s = L[i], S[i]
  if l.kind == 1 then
    local credit = amount * l.x - l.y * max(0, now - GIVEN_AT)
    if credit > 0 then s.used = max(0, s.used - credit) end
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

-- The call of a released permit was not made, so a repeat of its ask is a new one.
local function forget_id()
  if not RELEASE or E.ids == 0 or E.ids_until <= now then return end
  local dead = look_at_ids(STAMP)
  if #dead > 0 then redis.call('HDEL', KEY, unpack(dead)) end
end

-- Runs of settled stamps: {floor, first, last, youngest, first, last, youngest, ...}.
local runs = settled and cmsgpack.unpack(settled) or {0}
local expired = GIVEN_AT + PERMIT_TTL <= now
if not expired then
  for j = #runs - 2, 2, -3 do
    if runs[j] <= STAMP and STAMP <= runs[j + 1] then return answer(SAME) end
    if runs[j + 1] < STAMP then break end
  end
end
if expired or STAMP <= runs[1] then
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

local gives_back = SAME_NUMBERS and E.changed <= STAMP
for i, l in ipairs(L) do
  local wanted = read('<I7', ARGV[4], i * 7 - 6)
  if l.kind == 5 then
    free(i)
  elseif wanted < l.cost then
    if gives_back then give_back(i, l.cost - wanted) end
  else
    add(i, wanted - l.cost)
  end
end

-- Joins the stamp with the runs it touches, and forgets those that are too old to come again.
local kept, first, last, youngest, placed = {0}, STAMP, STAMP, GIVEN_AT, false
local function keep(f, l, y)
  kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = f, l, y
end
local any = false
for j = 2, #runs, 3 do
  local f, l, y = runs[j], runs[j + 1], runs[j + 2]
  if now < y + PERMIT_TTL then
    any = true
    if l + 1 == first then
      first, youngest = f, max(youngest, y)
    elseif last + 1 == f then
      last, youngest = l, max(youngest, y)
    else
      if not placed and last < f then
        keep(first, last, youngest)
        placed = true
      end
      keep(f, l, y)
    end
  end
end
if not placed then keep(first, last, youngest) end
if any then kept[1] = runs[1] end
if 1 + 3 * RUNS_MAX < #kept then
  local cut = {max(kept[1], kept[3])}
  for j = 5, #kept do cut[j - 3] = kept[j] end
  kept = cut
end
E.settled_until = max(E.settled_until, GIVEN_AT + PERMIT_TTL)
forget_id()
write('s', cmsgpack.pack(kept))
return answer(DONE)
