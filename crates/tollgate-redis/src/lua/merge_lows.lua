-- Merges the two neighbours of `lows` with the smallest difference, the earlier of several, into the later stamp and the lower
-- low.
do
  local all = {read('<LOWS_LAYOUT', lows)}
  local least, merged, before = MAX, 0, all[2]
  for j = 4, #all - 1, 2 do
    local used = all[j]
    if used - before < least then least, merged = used - before, 7 * j - 13 end
    before = used
  end
  lows = sub(lows, 1, merged - 15) .. sub(lows, merged, merged + 6) .. sub(lows, merged - 7, merged - 1) .. sub(lows, merged + 14)
end
