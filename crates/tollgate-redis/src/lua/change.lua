-- Changes states that were advanced to `now`, and writes them.

local function file(l, at)
  if l.y == 0 then return at end
  return (floor(at / l.y) + 1) * l.y
end

-- Records in the lows of a bucket what is used just before a charge with the entry's next stamp.
local function record(s)
  local lows, stamp, before, newest, used = s.lows, E.stamp, s.used, 0, 0
  if lows == '' then return end
  local past = #lows
  while past > 0 do
    newest, used = read('<I7I7', lows, past - 13)
    if used < before then break end
    newest, past = 0, past - 14
  end
  if newest == stamp then
    s.lows = sub(lows, 1, past)
  elseif past < LOWS_BYTES_MAX then
    s.lows = sub(lows, 1, past) .. pack('<I7I7', stamp, before)
  else
    local from, kept, middle, rest, low = 1, '', '', '', ''
MERGE_LOWS
    s.lows = kept .. middle .. rest .. low
  end
end

-- Puts a slot behind those that expire no later.
local function place_slot(held, expires, stamp, places)
  local pos = #held + 1
  while pos > 1 and expires < read('<I7', held, pos - 21) do pos = pos - 21 end
  return sub(held, 1, pos - 1) .. pack('<I7I7I7', expires, stamp, places) .. sub(held, pos)
end

-- Charges `cost` to anything but slots, whether it fits or not, so that it cannot be given back.
local function add(i, cost)
  if cost == 0 then return end
  local l, s = L[i], S[i]
  if l.kind == 1 then
    record(s)
    s.used = min(MAX, s.used + cost * l.x)
  elseif l.kind == 2 then
    s.used = min(MAX, s.used + cost)
  elseif l.kind == 3 then
    local log, t = W[i], file(l, now)
    cost = min(cost, MAX - s.used)
    if cost <= 0 then return end
    s.used = s.used + cost
    local last, amount = 0, 0
    if #log > 0 then last, amount = read('<I7I7', log, #log - 13) end
    if #log > 0 and t <= last then
      W[i] = sub(log, 1, #log - 7) .. pack('<I7', amount + cost)
    else
      log = log .. pack('<I7I7', t, cost)
      if LOG_BYTES_MAX < #log then
        -- The newest two become one at the later time, so that the older ones leave when they would have.
        local _, before, later, newest = read('<I7I7I7I7', log, #log - 27)
        log = sub(log, 1, #log - 28) .. pack('<I7I7', later, before + newest)
      end
      W[i] = log
    end
  elseif l.kind == 4 then
    s.used = min(MAX, s.used + cost)
    if s.ends - l.x <= now then s.late = min(MAX, s.late + cost) end
  end
end

-- When the entry becomes equivalent to an absent one.
local function absent_at()
  local due = max(E.stamp, E.stays)
  if E.changed > 0 then due = max(due, E.changed_at + PERMIT_TTL) end
  for i, l in ipairs(L) do
    local s, idle = S[i], 0
    if l.kind == 1 then
      idle = now + ceil(s.used / l.y)
    elseif l.kind == 2 then
      idle = (floor(now / l.y) + ceil(s.used / l.x)) * l.y
    elseif l.kind == 4 then
      idle = s.ends
      -- What came late counts in the next window too.
      if s.late > 0 then idle = (s.ends == l.last) and l.next_last or s.ends + 2 * (l.next_last - l.next_first) end
    elseif #W[i] > 0 then
      idle = (l.kind == 3) and read('<I7', W[i], #W[i] - 13) + l.x or read('<I7', W[i], #W[i] - 20)
    end
    due = max(due, idle, s.closed)
  end
  return due
end

-- Writes the entry and `more` fields. It expires once it is equivalent to an absent one.
local function write(...)
  local was = E.goes
  if given_now == 0 then E.goes = ceil(absent_at() / 1000) end
  local e = pack('<BI7I7I4I7I7I7I7I6I7', VERSION, E.at, E.stamp, (E.writes + 1) % 4294967296, E.stays, E.full, E.changed,
    E.changed_at, E.goes, E.digest)
  local lows = ''
  for i, s in ipairs(S) do
    e = e .. pack('<I7I7', s.used, s.closed)
    if L[i].kind == 1 then
      e = e .. pack('<I2', #s.lows)
      lows = lows .. s.lows
    elseif L[i].kind == 4 then
      e = e .. pack('<I7I7', s.ends, s.late)
    elseif W[i] then
      e = e .. pack('<I4', #W[i]) .. W[i]
    end
  end
  redis.call('HSET', KEY, 'e', e .. lows, 'p', SHAPE, ...)
  if E.goes ~= was then redis.call('PEXPIREAT', KEY, E.goes) end
end
