"""HAP: ratios of shares by a linear program, alternated with the search for a program; its A*."""
