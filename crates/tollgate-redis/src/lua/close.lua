-- close_until. A[3] the place of the limit, A[4] until when.
local b = FIXED + (A[3] - 1) * EACH + 1
local stop = load({})
if stop then return stop end
if A[4] <= now or (now < E[b + 4] and A[4] <= E[b + 4]) then return answer(SAME) end
E[b + 4] = A[4]
write()
return answer(DONE)
