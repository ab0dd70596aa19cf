  used$ = used$ - y * (now - at)
  if used$ < 0 then used$ = 0 end
  used$ = used$ + cost * x
  if most < used$ and cost > 0 then refused = true end
  if MAX < used$ then used$ = MAX end
  -- Rounded up with the end of the key.
  idle = now + used$ / y
