-- Judges one entry, for acquire.lua and joint.lua: brings the states of `e` from `at` to `now`, charges them in locals, and sets
-- `refused` if a limit has no room. Writes nothing.
local at, stamp, writes, stays, full, changed, changed_at, goes = now, now, 0, 0, 0, 0, 0, 0
-- Where the lows begin in e, behind the states.
local lows_at = 1
local $names = $zeros
if e then
  -- The digest covers the version and the shape; other scripts may have left it out.
  if read('<I7', e, 54) ~= digest then
    local version = e:byte()
    if version ~= 4 and version ~= 3 then return pack('<BI7I4B', 107, clock, 1, version) end
    if version == 3 or call('HGET', KEY, 'p') ~= SHAPE then
$other_shape
    end
  end
  local _
  _, at, stamp, writes, stays, full, changed, changed_at, goes, _, $names, lows_at = read('<BI7I7I4I7I7I7I7I6I7$layout', e)
  if now < at then now = at end
  if changed > 0 and changed_at + 3600000000 <= now then changed, changed_at = 0, 0 end
elseif now < 1 then
  stamp = 1
end

-- When the entry becomes equivalent to an absent one.
local due, refused, low_at = stamp + 1, false, lows_at
if due < stays then due = stays end
if changed > 0 and due < changed_at + 3600000000 then due = changed_at + 3600000000 end
$declared
$limits
