-- Whether the charge with the stamp `given`, which the id remembers, is still valid. A first charge in shadow mode has none.
  local is_valid = now < expires
  if is_valid and given > 0 then
    -- A reset since then makes it a new ask: its run of settled permits starts at 0.
    local settled = call('HGET', KEY, 's')
    if settled and read('<I7', settled, 23) == 0 then
      local length = read('<I4', settled, 19)
      local runs = (length == 0) and sub(settled, 23, 43) or call('HGET', KEY, 's' .. sub(settled, 30, 36))
      is_valid = read('<I7', runs, 8) < given
    end
  end
