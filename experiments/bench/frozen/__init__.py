"""What the planner finds, kept as figures that every change of the code is held against."""
