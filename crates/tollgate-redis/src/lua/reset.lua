-- reset. The permits that were given count as settled, so that none of them gives back what this gave back already.
local stop = load()
if stop then return stop end
local busy = false
for i, l in ipairs(L) do
  local s = S[i]
  local used = s.used + s.late
  busy = busy or used > 0 or now < s.closed
end
if not busy and now < E.ids_until then
  look_at_ids()
  busy = E.ids > 0
end
if not busy then return answer(SAME) end
local last = E.stamp - 1
E.stamp, E.settled_until = max(E.stamp, now, 1), now + PERMIT_TTL
E.ids, E.ids_look, E.ids_first, E.ids_until, E.changed, E.changed_at, E.goes = 0, 32, 0, 0, 0, 0, 0
for i in ipairs(S) do
  S[i] = {used = 0, closed = 0, ends = 0, late = 0}
  if W[i] then W[i] = '' end
end
redis.call('DEL', KEY)
write('s', cmsgpack.pack({0, 0, last, now}))
return answer(DONE)
