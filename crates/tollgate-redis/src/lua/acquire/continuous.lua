  local first, past = low_at, low_at + lows$
  low_at = past
  used$ = used$ - y * (now - at)
  -- A bucket that was empty starts anew: nothing charged earlier can be given back.
  if used$ <= 0 then used$, past = 0, first end
  local before = used$
  if cost > 0 then
    used$ = used$ + cost * x
    if most < used$ then refused = true end
    if MAX < used$ then used$ = MAX end
  end
  lows$ = 0
  if first < past then
    if cost > 0 then
      local newest, low = 0, 0
      while first < past do
        newest, low = read('<I7I7', e, past - 14)
        if low < before then break end
        newest, past = 0, past - 14
      end
      local lows = sub(e, first, past - 1)
      if newest ~= stamp then
        lows = lows .. pack('<I7I7', stamp, before)
        if 896 < #lows then
MERGE_LOWS
        end
      end
      tail$ = lows
    else
      tail$ = sub(e, first, past - 1)
    end
    lows$ = #tail$
  elseif refundable and cost > 0 then
    tail$, lows$ = pack('<I7I7', stamp, 0), 14
  end
  -- Rounded up with the end of the key.
  idle = now + used$ / y
