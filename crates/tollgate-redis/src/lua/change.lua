-- Changes states that stand at `now`, and writes them.

local function file(l, at)
  if l[5] == 0 then return at end
  return (floor(at / l[5]) + 1) * l[5]
end

-- Halves a log: each pair becomes one entry at the later time, so that nothing leaves the window early.
local function merge(log)
  local out, length, pos = {}, #log, 1
  while pos <= length do
    local t, amount = unpack_at('<I8I8', log, pos)
    if pos + 16 <= length then
      local later, more = unpack_at('<I8I8', log, pos + 16)
      t, amount = later, amount + more
    end
    out[#out + 1] = pack('<I8I8', t, amount)
    pos = pos + 32
  end
  return table.concat(out)
end

-- Puts a slot behind those that expire no later.
local function place_slot(held, expires, stamp, places)
  local pos = #held + 1
  while pos > 1 do
    local other = unpack_at('<I8', held, pos - 24)
    if other <= expires then break end
    pos = pos - 24
  end
  return sub(held, 1, pos - 1) .. pack('<I8I8I8', expires, stamp, places) .. sub(held, pos)
end

-- Charges `cost`, whether it fits or not.
local function add(i, cost, stamp)
  if cost == 0 then return end
  local l, b = L[i], FIXED + (i - 1) * EACH + 1
  local kind = l[1]
  if kind == 1 or kind == 2 then
    local used = E[b + 1] + ((kind == 1) and cost * l[4] or cost)
    if MAX < used then used = MAX end
    E[b + 1] = used
  elseif kind == 3 then
    local log, sum, t = W[i], E[b + 1], file(l, now)
    if MAX - sum < cost then cost = MAX - sum end
    if cost <= 0 then return end
    E[b + 1] = sum + cost
    local length = #log
    local last, amount
    if length > 0 then last, amount = unpack_at('<I8I8', log, length - 15) end
    if last and t <= last then
      W[i] = sub(log, 1, length - 8) .. pack('<I8', amount + cost)
    else
      log = log .. pack('<I8I8', t, cost)
      if LOG_BYTES_MAX < #log then log = merge(log) end
      W[i] = log
    end
  elseif kind == 4 then
    E[b + 2] = math.min(E[b + 2] + cost, MAX)
    if E[b + 1] - l[4] <= now then E[b + 3] = math.min(E[b + 3] + cost, MAX) end
  else
    W[i] = place_slot(W[i], now + l[4], stamp, cost)
    E[b + 1] = E[b + 1] + cost
  end
end

-- Looks through all ids: the fields of those that are too old or belong to the charge `forget`, how many others there
-- are, and until when.
local function look_at_ids(forget)
  local all, dead, live, last = redis.call('HGETALL', KEY), {}, 0, 0
  for j = 1, #all, 2 do
    if sub(all[j], 1, 1) == 'i' then
      local record = cmsgpack.unpack(all[j + 1])
      if record[3] <= now or record[1] == forget then
        dead[#dead + 1] = all[j]
      else
        live, last = live + 1, math.max(last, record[3])
      end
    end
  end
  return dead, live, last
end

-- When the entry says what an absent one says.
local function absent_at()
  local due = math.max(E[3], E[6], E[7])
  if E[8] > 0 then due = math.max(due, E[9] + PERMIT_TTL) end
  for i = 1, #L do
    local l, b, idle = L[i], FIXED + (i - 1) * EACH + 1, 0
    local kind = l[1]
    if kind == 1 then
      idle = now + ceil(E[b + 1] / l[5])
    elseif kind == 2 then
      idle = (floor(now / l[5]) + ceil(E[b + 1] / l[4])) * l[5]
    elseif kind == 4 then
      idle = E[b + 1]
      if E[b + 3] > 0 then
        -- What came late counts in the next window too.
        idle = (idle == l[7]) and l[9] or idle + 2 * (l[9] - l[8])
      end
    elseif #W[i] > 0 then
      if kind == 3 then
        idle = unpack_at('<I8', W[i], #W[i] - 15) + l[4]
      else
        idle = unpack_at('<I8', W[i], #W[i] - 23)
      end
    end
    if due < idle then due = idle end
    if due < E[b + 4] then due = E[b + 4] end
  end
  return due
end

-- Writes header, logs and `more` fields; the entry goes when it says what an absent one says.
local function write(more)
  E[4] = E[4] + 1
  local fields = more or {}
  local n = #fields
  fields[n + 1], fields[n + 2] = 'e', cmsgpack.pack(E)
  n = n + 2
  if not present then
    fields[n + 1], fields[n + 2] = 'p', SHAPE
    n = n + 2
  end
  for i, log in pairs(W) do
    fields[n + 1], fields[n + 2] = 'w' .. i, log
    n = n + 2
  end
  redis.call('HSET', KEY, unpack(fields))
  if told == 0 then
    redis.call('PEXPIREAT', KEY, string.format('%.0f', ceil(absent_at() / 1000)))
  end
end
