-- standing. Reads only; the core brings what is there to now.
local e, reply = fetch()
if reply then return reply end
return answer(SAME, '', e and shortened(e, now, ARGV[1]))
