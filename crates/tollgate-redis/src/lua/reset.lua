-- reset. The permits that were given count as settled, so that none of them gives back what this gave back already.
local stop = load({})
if stop then return stop end
local busy = false
for i = 1, #L do
  local b = FIXED + (i - 1) * EACH + 1
  local used = (L[i][1] == 4) and E[b + 2] + E[b + 3] or E[b + 1]
  busy = busy or used > 0 or now < E[b + 4]
end
if not busy and now < E[6] then
  local _, live = look_at_ids()
  busy = live > 0
end
if not busy then return answer(SAME) end
local last = E[3] - 1
E = {1, now, math.max(E[3], now, 1), E[4], 0, 0, now + PERMIT_TTL, 0, 0}
for i = 1, #L do
  local b = FIXED + (i - 1) * EACH
  E[b + 1], E[b + 2], E[b + 3], E[b + 4], E[b + 5] = L[i][1], 0, 0, 0, 0
  if W[i] then W[i] = '' end
end
redis.call('DEL', KEY)
present = false
write({'s', cmsgpack.pack({0, 0, last, now})})
return answer(DONE)
