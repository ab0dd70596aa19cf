    if 32 < call('HLEN', KEY) then
      -- Looks at a few fields with each ask, so that expired ids go in time and no ask pays for all of them.
      local scan = call('HSCAN', KEY, call('HGET', KEY, 'o') or '0', 'COUNT', 8)
      local found = scan[2]
      for j = 1, #found, 2 do
        if found[j]:byte() == 107 and read('<I7', found[j + 1], 15) <= now then call('HDEL', KEY, found[j]) end
      end
      call('HSET', KEY, FIELD, remembers, 'o', scan[1])
    else
      call('HSET', KEY, FIELD, remembers)
    end
