  local first, last = 1, #log$
  local t, amount = 0, 0
  while first < last do
    t, amount = read('<I7I7', log$, first)
    if now < t + x then break end
    used$ = used$ - amount
    first = first + 14
  end
  if most < used$ + cost and cost > 0 then refused = true end
  if MAX - used$ < cost then cost = MAX - used$ end
  if first + 14 < last then
    t, amount = read('<I7I7', log$, last - 13)
  elseif last < first then
    t = 0
  end
  if first < last then idle = t + x end
  if cost > 0 then
    used$ = used$ + cost
    local filed = now
    if y > 0 then filed = now - now % y + y end
    local entry
    if filed <= t then
      entry, last = pack('<I7I7', t, amount + cost), last - 14
    else
      entry, idle = pack('<I7I7', filed, cost), filed + x
    end
    log$ = (first < last) and sub(log$, first, last) .. entry or entry
    if 14336 < #log$ then
      -- The newest two become one at the later time, so that the older ones leave when they would have.
      local _, before, later, newest = read('<I7I7I7I7', log$, #log$ - 27)
      log$ = sub(log$, 1, #log$ - 28) .. pack('<I7I7', later, before + newest)
    end
  elseif 1 < first then
    log$ = sub(log$, first)
  end
