-- settle and release. A[3] when the permit was given, A[4] its stamp, A[5] what is wanted instead, by limit, A[6] 1 if
-- its policy still has the numbers it was given under, A[7] 1 to release.
local GIVEN_AT, STAMP, WANTED, SAME_NUMBERS, RELEASE = A[3], A[4], A[5], A[6] == 1, A[7] == 1
local stop = load({'s'})
if stop then return stop end

-- Gives back what time has not given back already.
local function give_back(i, amount)
  local l, b = L[i], FIXED + (i - 1) * EACH + 1
  local kind = l[1]
  if kind == 1 then
    local credit = amount * l[4] - l[5] * math.max(0, now - GIVEN_AT)
    if credit > 0 then E[b + 1] = math.max(0, E[b + 1] - credit) end
  elseif kind == 2 then
    if floor(GIVEN_AT / l[5]) == floor(now / l[5]) then E[b + 1] = math.max(0, E[b + 1] - amount) end
  elseif kind == 3 then
    local filed, log = file(l, GIVEN_AT), W[i]
    if filed + l[4] <= now then return end
    for pos = 1, #log, 16 do
      local t, held = unpack_at('<I8I8', log, pos)
      -- Where it was merged with a later one nothing is given back, so that a younger charge never is.
      if filed < t then return end
      if filed == t then
        local taken = math.min(amount, held)
        local left = (taken < held) and pack('<I8I8', t, held - taken) or ''
        W[i] = sub(log, 1, pos - 1) .. left .. sub(log, pos + 16)
        E[b + 1] = E[b + 1] - taken
        return
      end
    end
  elseif kind == 4 then
    if GIVEN_AT < E[b + 1] and l[10] == E[b + 1] then
      E[b + 2] = math.max(0, E[b + 2] - amount)
      if E[b + 1] - l[4] <= GIVEN_AT then E[b + 3] = math.max(0, E[b + 3] - amount) end
    end
  end
end

-- Frees the slots of the permit; whether there were any.
local function free(i)
  local held, out, b, freed = W[i], {}, FIXED + (i - 1) * EACH + 1, false
  for pos = 1, #held, 24 do
    local _, stamp, places = unpack_at('<I8I8I8', held, pos)
    if stamp == STAMP then
      E[b + 1] = E[b + 1] - places
      freed = true
    else
      out[#out + 1] = sub(held, pos, pos + 23)
    end
  end
  W[i] = table.concat(out)
  return freed
end

-- The call of a released permit was not made, so a repeat of its ask is a new one.
local function forget_id()
  if not RELEASE or E[5] == 0 then return end
  local dead, live, last = look_at_ids(STAMP)
  if #dead > 0 then redis.call('HDEL', KEY, unpack(dead)) end
  E[5], E[6] = live, last
end

-- Runs of settled stamps: {floor, first, last, youngest, first, last, youngest, ...}.
local runs = extras[1] and cmsgpack.unpack(extras[1]) or {0}
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
  for i = 1, #L do
    if L[i][1] == 5 then freed = free(i) or freed end
  end
  if not freed then return answer(EXPIRED) end
  forget_id()
  write()
  return answer(DONE)
end

local gives_back = SAME_NUMBERS and E[8] <= STAMP
for i = 1, #L do
  local estimate, wanted = L[i][2], WANTED[i]
  if L[i][1] == 5 then
    free(i)
  elseif wanted < estimate then
    if gives_back then give_back(i, estimate - wanted) end
  else
    add(i, wanted - estimate, STAMP)
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
      first, youngest = f, math.max(youngest, y)
    elseif last + 1 == f then
      last, youngest = l, math.max(youngest, y)
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
  local cut = {math.max(kept[1], kept[3])}
  for j = 5, #kept do cut[j - 3] = kept[j] end
  kept = cut
end
if E[7] < GIVEN_AT + PERMIT_TTL then E[7] = GIVEN_AT + PERMIT_TTL end
forget_id()
write({'s', cmsgpack.pack(kept)})
return answer(DONE)
