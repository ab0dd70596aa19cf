-- The names of the fields that hold older runs of settled permits.
local function older_runs(s)
  local names, length, from = {}, struct.unpack('<I4', s, 19)
  for place = from, from + length - 1, 14 do
    names[#names + 1] = 's' .. string.sub(s, place + 7, place + 13)
  end
  return names
end

-- The fields of the entry without ids, and what is known of one id under the name k: names and values in turn.
local function whole(known)
  local call, key = redis.call, KEYS[1]
  local got = call('HMGET', key, 'e', 'p', 's')
  local e, s, all = got[1], got[3], {}
  if known then all = {'k', known} end
  local function add(name, value)
    all[#all + 1] = name
    all[#all + 1] = value or ''
  end
  if e then
    add('e', e)
    add('p', got[2])
    add('s', s)
    if s and e:byte() == 4 then
      for _, name in ipairs(older_runs(s)) do add(name, call('HGET', key, name)) end
    end
  end
  return cmsgpack.pack(all)
end
