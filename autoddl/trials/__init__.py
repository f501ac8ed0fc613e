"""Run the best plans for a while, each in ranks of its own, before one of them is chosen.

Nothing of a live graph can be sent to other processes, so these make it themselves: they run the user's
script up to its call of `optimize`, which in them takes the plan that is to be tried, applies it, times
some steps and ends the process.
"""
