"""AMP's studies: its set-ups, its space of strategies, and its annealing beside enumeration."""
