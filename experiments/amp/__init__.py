"""AMP's set-ups, and the strategies that it prints beside our planner."""
