do
  local cost, most, x, y = read('<I7I7I7I7', args, $place)
  local idle = 0
$rule
  if cost > 0 and now < closed$ then refused = true end
  if due < idle then due = idle end
  if due < closed$ then due = closed$ end
end
