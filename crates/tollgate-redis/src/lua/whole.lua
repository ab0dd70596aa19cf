-- Everything there is, for what the core has to look at on its own: an ask that stands behind others.
return dump()
