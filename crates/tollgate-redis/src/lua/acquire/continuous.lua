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
    local newest = stamp
    if cost > 0 then
      local low = 0
      while first < past do
        newest, low = read('<I7I7', e, past - 14)
        if low < before then break end
        newest, past = 0, past - 14
      end
    end
    if newest == stamp then
      kept$, lows$ = sub(e, first, past - 1), past - first
    elseif past - first < 896 then
      kept$, low$, lows$ = sub(e, first, past - 1), pack('<I7I7', stamp, before), past - first + 14
    else
      local lows, from, kept, middle, rest, low = e, first, '', '', '', ''
MERGE_LOWS
      kept$, middle$, rest$, low$, lows$ = kept, middle, rest, low, 896
    end
  elseif refundable and cost > 0 then
    low$, lows$ = pack('<I7I7', stamp, 0), 14
  end
  -- Rounded up with the end of the key.
  idle = now + used$ / y
