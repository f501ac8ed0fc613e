"""The tuned numbers of the search of steps, each with its reason.

`python -m experiments.bench.tuned_numbers` measures half and twice of each.
"""

from __future__ import annotations

# How near is near enough, relative.
SOLVED = 1e-3  # the gap at which networks are solved; a step has less in common with their sums
PROVEN = 1e-4  # of the step; a tenth of it costs seconds, with ten times baselines may be shorter

# Critical paths.
LATEST = 0.5  # the weight of the latest path in the average; the first ones are soon forgotten
OFF_PATH = 0.02  # what a second off the critical path counts: of equal steps the cheaper one
FREE = 0.002  # what gradients and parameters count at first in the second search, as in ZeRO 2
PATIENCE = 3  # critical paths in a row that lead to no better step

# Moves: so many in a row without a better step, or so many times the gap, the most there is to gain.
LEAST_TRIES, TRIES = 96, 8000

# Parts of the budget: for one path (twice that for one bound), and until when each phase may last. What
# is left then is for making a plan of the result.
ONE = 0.04
FIRST, CANDIDATES, MOVES = 0.2, 0.3, 0.7

# The bound.
LEAST_WEIGHT = 1e-4  # of a resource; where seconds count nothing there are too many optima
MET = 1e-3  # relative; so near do bound and planes come
MIXTURES = 12  # that are tried along one dependency path
