-- acquire and charge. A[3] what it costs by unit, A[4] how long the id is remembered, A[5] 1 to charge without deciding.
local ID, FORCE = ARGV[3], A[5] == 1
local id_field = 'i' .. ID
local stop = load((ID ~= '') and {id_field} or {})
if stop then return stop end

-- Whether a repeat can have what it was given: a permit that took slots is worth nothing once they are gone.
local function still_stands(stamp)
  local took = false
  for i = 1, #L do
    if L[i][1] == 5 then
      took = took or L[i][2] > 0
      for pos = 9, #W[i], 24 do
        if unpack_at('<I8', W[i], pos) == stamp then return true end
      end
    end
  end
  return not took
end

-- What is known of the id. The core says what follows from it, also that it was used with other costs.
local known = extras[1] and cmsgpack.unpack(extras[1])
if known and now < known[3] then
  local same = not FORCE
  for j = 1, #A[3] do same = same and known[j + 3] == A[3][j] end
  if not same or still_stands(known[1]) then return answer(SAME, known, E, brief()) end
end

if not FORCE then
  for i = 1, #L do
    local l, b = L[i], FIXED + (i - 1) * EACH + 1
    local kind, cost = l[1], l[2]
    if cost > 0 then
      local wanted
      if kind == 1 then
        wanted = E[b + 1] + cost * l[4]
      elseif kind == 4 then
        wanted = E[b + 2] + cost
      else
        wanted = E[b + 1] + cost
      end
      if l[3] < wanted or now < E[b + 4] then return answer(SAME, 0, E, brief()) end
    end
  end
end

local more
if ID ~= '' then
  if IDS_MAX <= E[5] then
    -- Forgets what is too old; this happens at most once in so many ids.
    local dead, live, last = look_at_ids()
    if IDS_MAX <= live then return answer(CONTENDED) end
    redis.call('HDEL', KEY, unpack(dead))
    E[5], E[6] = live, last
    known = known and now < known[3]
  end
  local record = {E[3], now, now + A[4]}
  for j = 1, #A[3] do record[j + 3] = A[3][j] end
  more = {id_field, cmsgpack.pack(record)}
  if not known then E[5] = E[5] + 1 end
  if E[6] < record[3] then E[6] = record[3] end
end

local stamp = E[3]
E[3] = stamp + 1
for i = 1, #L do
  if not (FORCE and L[i][1] == 5) then add(i, L[i][2], stamp) end
end
write(more)
return answer(DONE, {now, stamp}, E, brief())
