  local first, last, next_first, next_last = read('<I7I7I7I7', args, $place + 28)
  if ends$ <= now then
    local start, stop = first, last
    if now < first or last <= now then start, stop = next_first, next_last end
    -- The caller's clock is in another window: it sends the windows of this time.
    if now < start or stop <= now then return pack('<BI7I4I7', 104, clock, 7, now) end
    used$ = (start == ends$) and late$ or 0
    ends$, late$ = stop, 0
  end
  used$ = used$ + cost
  if most < used$ and cost > 0 then refused = true end
  if MAX < used$ then used$ = MAX end
  if ends$ - x <= now then
    late$ = late$ + cost
    if MAX < late$ then late$ = MAX end
  end
  idle = ends$
  -- What came late counts in the next window too.
  if late$ > 0 then idle = (ends$ == last) and next_last or ends$ + 2 * (next_last - next_first) end
