-- renew. A1 the stamp of the permit; the cost of a limit says whether it took a slot.
local stop = load()
if stop then return stop end
local renewed, lost
for i, l in ipairs(L) do
  if l.kind == 5 then
    local held, expires = W[i], nil
    for pos = 1, #held, 21 do
      local until_then, stamp, places = read('<I7I7I7', held, pos)
      if stamp == A1 then
        expires = max(until_then, now + l.x)
        W[i] = place_slot(sub(held, 1, pos - 1) .. sub(held, pos + 21), expires, stamp, places)
        break
      end
    end
    if expires then
      renewed = min(renewed or expires, expires)
    elseif l.cost > 0 then
      lost = true
    end
  end
end
if lost or not renewed then return answer(EXPIRED) end
write()
return answer(DONE, pack('<I7', renewed))
