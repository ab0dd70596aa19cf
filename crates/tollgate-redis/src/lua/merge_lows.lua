-- `lows` has as many lows as there may be from `from` on, and one more comes: `stamp` and `before`. Merges the two neighbours with
-- the smallest difference, the earlier of several, into the later stamp and the lower low. What stays is in four pieces.
-- The numbers are parameters, and the loop over them is written out: it runs with each ask of a bucket in a burst.
local function closest(before, LOWS_NAMES)
  local least, merged = 9007199254740991, 0
LOWS_STEPS
  if before - u64 < least then merged = 65 end
  return merged, u64
end
local merged, newest = closest(before, read('<LOWS_LAYOUT', lows, from))
if merged == 65 then
  kept, low = sub(lows, from, from + 881), pack('<I7I7', stamp, newest)
else
  local at = from + 14 * merged - 14
  kept, middle = sub(lows, from, at - 15), sub(lows, at, at + 6) .. sub(lows, at - 7, at - 1)
  rest, low = sub(lows, at + 14, from + 895), pack('<I7I7', stamp, before)
end
