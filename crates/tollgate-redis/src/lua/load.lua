-- Reads the entry and brings every state to `now`.
local E, W, extras, present = nil, {}, {}, true

-- `more` are further fields to read. Returns a reply if the script can go no further.
local function load(more)
  local fields = {'p', 'e'}
  for i = 1, #L do
    local kind = L[i][1]
    if kind == 3 or kind == 5 then fields[#fields + 1] = 'w' .. i end
  end
  local logs_end = #fields
  for j = 1, #more do fields[#fields + 1] = more[j] end
  local got = redis.call('HMGET', KEY, unpack(fields))
  if not got[1] then
    present = false
    E = {1, now, now, 0, 0, 0, 0, 0, 0}
    if now < 1 then E[3] = 1 end
    for i = 1, #L do
      local b = FIXED + (i - 1) * EACH
      E[b + 1], E[b + 2], E[b + 3], E[b + 4], E[b + 5] = L[i][1], 0, 0, 0, 0
    end
  else
    if got[1] ~= SHAPE then return dump(OTHER_SHAPE) end
    E = cmsgpack.unpack(got[2])
    if E[1] ~= 1 then return answer(VERSION, E[1]) end
    if now < E[2] then now = E[2] end
    -- Every permit from before the change is too old to be settled.
    if E[9] + PERMIT_TTL <= now then E[8], E[9] = 0, 0 end
  end
  for j = 1, #more do extras[j] = got[logs_end + j] end
  local at, next_log = E[2], 3
  for i = 1, #L do
    local l, b = L[i], FIXED + (i - 1) * EACH + 1
    local kind = l[1]
    if kind == 1 then
      local used = E[b + 1] - l[5] * (now - at)
      if used < 0 then used = 0 end
      E[b + 1] = used
    elseif kind == 2 then
      local used = E[b + 1] - l[4] * (floor(now / l[5]) - floor(at / l[5]))
      if used < 0 then used = 0 end
      E[b + 1] = used
    elseif kind == 3 then
      local log, sum, pos = got[next_log] or '', E[b + 1], 1
      next_log = next_log + 1
      local length = #log
      while pos <= length do
        local t, amount = unpack_at('<I8I8', log, pos)
        if now < t + l[4] then break end
        sum = sum - amount
        pos = pos + 16
      end
      if pos > 1 then log = sub(log, pos) end
      W[i], E[b + 1] = log, sum
    elseif kind == 4 then
      if E[b + 1] <= now then
        local first, last
        if l[6] <= now and now < l[7] then
          first, last = l[6], l[7]
        elseif l[8] <= now and now < l[9] then
          first, last = l[8], l[9]
        else
          -- The caller's clock is in another window: it sends the windows of this time.
          return answer(OTHER_WINDOW, now)
        end
        E[b + 2] = (first == E[b + 1]) and E[b + 3] or 0
        E[b + 1], E[b + 3] = last, 0
      end
    else
      local held, sum, pos = got[next_log] or '', E[b + 1], 1
      next_log = next_log + 1
      local length = #held
      while pos <= length do
        local expires, _, places = unpack_at('<I8I8I8', held, pos)
        if now < expires then break end
        sum = sum - places
        pos = pos + 24
      end
      if pos > 1 then held = sub(held, pos) end
      W[i], E[b + 1] = held, sum
    end
  end
  E[2] = now
end

-- The logs as the core needs them to say when there is room: what stands behind that is one entry.
local function brief()
  local all = {}
  for i, log in pairs(W) do
    local l, b, out = L[i], FIXED + (i - 1) * EACH + 1, {}
    local sum, width = E[b + 1], (l[1] == 3) and 16 or 24
    local most = l[3]
    local target = most - 1
    if sum < most then target = sum - 1 end
    if most - l[2] < target then target = most - l[2] end
    local rest, length, pos = sum, #log, 1
    while pos <= length and target < rest do
      local t, a, c = unpack_at((width == 16) and '<I8I8' or '<I8I8I8', log, pos)
      out[#out + 1], out[#out + 2] = t, (width == 16) and a or c
      rest = rest - ((width == 16) and a or c)
      pos = pos + width
    end
    if pos <= length and rest > 0 then
      local last = unpack_at('<I8', log, length - width + 1)
      out[#out + 1], out[#out + 2] = last, rest
    end
    all[#all + 1] = {i, out}
  end
  return all
end
