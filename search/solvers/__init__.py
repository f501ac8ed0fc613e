"""All solvers, by name."""
