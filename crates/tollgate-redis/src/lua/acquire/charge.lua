-- Judges one charge of joint.lua. `given` is the stamp that it got under the ask's id, or 0; `keeps_id` says that the id is a field
-- of its entry. Returns a reply if the script can go no further; otherwise nothing, and what to write.
judge[$function] = function(KEY, args, SHAPE, given, keeps_id)
  local now, digest, e = clock, read('<I7', args, 22), call('HGET', KEY, 'e')
$judge
  local took, held = false, false
  if given > 0 then
$held
  end
  local charge = {e = e, lows_at = lows_at, now = now, stamp = stamp, goes = goes, ends = goes, lost = took and not held}
  if keeps_id then
    if stays < now + id_ttl then stays = now + id_ttl end
    if due < stays then due = stays end
  end
  if force or not refused then
    charge.waits = now < full and refundable and not force
    if given_now == 0 then charge.ends = math.ceil(due / 1000) end
    charge.answer = pack('<BI7I7I4I7I7I7I7I6I7$layout', 4, now, stamp + 1, (writes + 1) % 4294967296, stays, full, changed,
      changed_at, charge.ends, digest, $values)
    charge.lows = ''$tails
  elseif keeps_id then
    -- Shadow mode leaves the charge out, and its entry has to stay as long as the id. A new one says what an absent one says,
    -- also to a clock that goes back, so its time is 0.
    if given_now == 0 then charge.ends = math.max(goes, math.ceil(stays / 1000)) end
    local kept = e or pack('<BI7I7I4I7I7I7I7I6I7$layout', 4, 0, stamp, 0, 0, 0, 0, 0, 0, digest, $empty)
    charge.kept = sub(kept, 1, 19) .. pack('<I7', stays) .. sub(kept, 27, 47) .. pack('<I6', charge.ends) .. sub(kept, 54)
  end
  return nil, charge
end
