"""AMP's studies: its set-ups, the strategies that it prints, its space beside our planner."""
