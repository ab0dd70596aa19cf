-- renew. A[3] the stamp of the permit; the cost of a limit says whether it took a slot.
local STAMP = A[3]
local stop = load({})
if stop then return stop end
local renewed, lost
for i = 1, #L do
  local l = L[i]
  if l[1] == 5 then
    local held, expires = W[i], nil
    for pos = 1, #held, 24 do
      local until_then, stamp, places = unpack_at('<I8I8I8', held, pos)
      if stamp == STAMP then
        expires = math.max(until_then, now + l[4])
        W[i] = place_slot(sub(held, 1, pos - 1) .. sub(held, pos + 24), expires, stamp, places)
        break
      end
    end
    if not expires then
      if l[2] > 0 then lost = true end
    elseif not renewed or expires < renewed then
      renewed = expires
    end
  end
end
if lost or not renewed then return answer(EXPIRED) end
write()
return answer(DONE, renewed)
