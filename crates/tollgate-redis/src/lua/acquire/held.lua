      took = took or read('<I7', args, $place) > 0
      for slot = 1, #log$, 21 do
        local expires, whose = read('<I7I7', log$, slot)
        held = held or (whose == given and now < expires)
      end
