-- Returns the states of a reply with long logs, advanced to `now` and truncated to what the core needs to compute when there is
-- room: the rest of a log is one entry. The lows of buckets are left out.
local function shortened(e, now, args)
  local read, pack, sub = struct.unpack, struct.pack, string.sub
  local out, place, from = sub(e, 1, 60), 36, 61
  now = math.max(now, (read('<I7', e, 2)))
  while place <= #args do
    local kind, cost, most, x, _
    kind, cost, most, x, _, place = read('<BI7I7I7I7', args, place)
    if kind == 3 or kind == 5 then
      local width, lasts = (kind == 3) and 14 or 21, (kind == 3) and x or 0
      local used, closed, length, first = read('<I7I7I4', e, from)
      local past = first + length
      local function amount_at(pos) return (read('<I7', e, pos + width - 7)) end
      while first < past and read('<I7', e, first) + lasts <= now do
        used = used - amount_at(first)
        first = first + width
      end
      local target = math.min(most - 1, used - 1, most - cost)
      local rest, cut = used, first
      while cut < past and target < rest do
        rest = rest - amount_at(cut)
        cut = cut + width
      end
      local log = sub(e, first, cut - 1)
      if cut < past and rest > 0 then log = log .. sub(e, past - width, past - 8) .. pack('<I7', rest) end
      out = out .. pack('<I7I7I4', used, closed, #log) .. log
      from = past
    else
      local length = 14
      if kind == 4 then place, length = place + 35, 28 elseif kind == 1 then length = 16 end
      out = out .. sub(e, from, from + length - 1)
      from = from + length
    end
  end
  return out
end
