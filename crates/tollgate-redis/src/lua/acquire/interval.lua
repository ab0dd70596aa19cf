  local period = math.floor(now / y)
  used$ = used$ - x * (period - math.floor(at / y))
  if used$ < 0 then used$ = 0 end
  used$ = used$ + cost
  if most < used$ and cost > 0 then refused = true end
  if MAX < used$ then used$ = MAX end
  idle = (period + math.ceil(used$ / x)) * y
