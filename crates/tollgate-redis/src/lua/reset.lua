-- reset. The permits that were given count as settled, so that none of them gives back what this gave back already; and the
-- ids that were given are new again, since this run starts at 0.
local stop = load()
if stop then return stop end
local busy = false
for i, l in ipairs(L) do
  local s = S[i]
  local used = s.used + s.late
  busy = busy or used > 0 or now < s.closed
end
if not busy then return answer(SAME) end
local last = E.stamp - 1
E.stamp, E.stays, E.full, E.changed, E.changed_at, E.goes = max(E.stamp + 1, now), now + PERMIT_TTL, 0, 0, 0, 0
for i in ipairs(S) do
  S[i] = {used = 0, closed = 0, ends = 0, late = 0, lows = ''}
  if W[i] then W[i] = '' end
end
redis.call('DEL', KEY)
write('s', pack('<I7I4I7I4I7I7I7', 0, 1, now, 0, 0, last, now))
return answer(DONE)
