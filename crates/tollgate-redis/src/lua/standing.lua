-- standing. Reads only.
local stop = load({})
if stop then return stop end
return answer(SAME, 0, E, brief())
