-- Returns the whole entry, for decisions that the core makes itself: an ask in a queue.
return dump()
