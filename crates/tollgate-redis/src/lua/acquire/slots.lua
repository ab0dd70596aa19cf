  local first, last = 1, #log$
  while first < last do
    local expires, _, places = read('<I7I7I7', log$, first)
    if now < expires then break end
    used$ = used$ - places
    first = first + 21
  end
  if 1 < first then log$ = sub(log$, first) end
  if #log$ > 0 then idle = read('<I7', log$, #log$ - 20) end
  -- A charge without a decision takes no slot.
  if cost > 0 and not force then
    if most < used$ + cost then refused = true end
    used$ = used$ + cost
    local expires, behind = now + x, #log$ + 1
    while behind > 1 and expires < read('<I7', log$, behind - 21) do behind = behind - 21 end
    log$ = sub(log$, 1, behind - 1) .. pack('<I7I7I7', expires, stamp, cost) .. sub(log$, behind)
    if idle < expires then idle = expires end
  end
