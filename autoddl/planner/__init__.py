"""From a program and what the user has fixed to a plan."""
