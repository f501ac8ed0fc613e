"""What to do where no plan fits into memory: what is in the way, and what helps, tried by planning."""
