"""Plans without stages: one search of the states of all tensors."""
