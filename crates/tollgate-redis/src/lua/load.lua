-- Reads the entry and brings every state to `now`: E has the fixed part, L the limits, S what each remembers, and W the
-- logs of windows and slots. acquire.lua says the same straight down.
local E, L, S, W = {}, {}, {}, {}
local present = false

-- Returns a reply if the script can go no further.
local function load()
  local e, reply = fetch()
  if reply then return reply end
  local _, from
  if e then
    present = true
    _, E.at, E.stamp, E.writes, E.stays, E.full, E.changed, E.changed_at, E.goes, E.digest, from =
      read('<BI7I7I4I7I7I7I7I6I7', e)
    now = max(now, E.at)
    -- Every permit from before the change is too old to be settled.
    if E.changed_at + PERMIT_TTL <= now then E.changed, E.changed_at = 0, 0 end
  else
    E.at, E.stamp, E.writes, E.stays, E.full, E.changed, E.changed_at, E.goes, E.digest = now, max(now, 1), 0, 0, 0, 0, 0, 0, 0
  end
  local place = 36
  while place <= #ARGV[1] do
    local l, s, i = {}, {used = 0, closed = 0, ends = 0, late = 0}, #L + 1
    l.kind, l.cost, l.most, l.x, l.y, place = read('<BI7I7I7I7', ARGV[1], place)
    L[i], S[i] = l, s
    if present then s.used, s.closed, from = read('<I7I7', e, from) end
    if l.kind == 1 then
      s.lows = 0
      if present then s.lows, from = read('<I2', e, from) end
      s.used = max(0, s.used - l.y * (now - E.at))
    elseif l.kind == 2 then
      s.used = max(0, s.used - l.x * (floor(now / l.y) - floor(E.at / l.y)))
    elseif l.kind == 4 then
      l.first, l.last, l.next_first, l.next_last, l.given_last, place = read('<I7I7I7I7I7', ARGV[1], place)
      if present then s.ends, s.late, from = read('<I7I7', e, from) end
      if s.ends <= now then
        local first, last
        if l.first <= now and now < l.last then
          first, last = l.first, l.last
        elseif l.next_first <= now and now < l.next_last then
          first, last = l.next_first, l.next_last
        else
          return answer(OTHER_WINDOW, pack('<I7', now))
        end
        s.used = (first == s.ends) and s.late or 0
        s.ends, s.late = last, 0
      end
    elseif l.kind == 3 or l.kind == 5 then
      W[i] = ''
      if present then
        local width, lasts, length = (l.kind == 3) and 14 or 21, (l.kind == 3) and l.x or 0, 0
        length, from = read('<I4', e, from)
        local past = from + length
        while from < past and read('<I7', e, from) + lasts <= now do
          s.used = s.used - read('<I7', e, from + width - 7)
          from = from + width
        end
        W[i] = sub(e, from, past - 1)
        from = past
      end
    else
      return redis.error_reply('ERR this script does not know the rule of a limit')
    end
  end
  for i, l in ipairs(L) do
    local s = S[i]
    if l.kind == 1 then
      local length = s.lows
      -- A bucket that was empty starts anew.
      s.lows = (length > 0 and s.used > 0) and sub(e, from, from + length - 1) or ''
      if length > 0 then from = from + length end
    end
  end
  E.at = now
end
