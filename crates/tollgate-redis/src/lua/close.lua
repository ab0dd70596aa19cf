-- close_until. A1 the place of the limit, A2 until when.
local stop = load()
if stop then return stop end
local s = S[A1]
if A2 <= now or (now < s.closed and A2 <= s.closed) then return answer(SAME) end
s.closed = A2
write()
return answer(DONE)
