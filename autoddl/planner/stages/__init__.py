"""Plans with stages: classes of parts, the states on them, cuts, and what these cost."""
