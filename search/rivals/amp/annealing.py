"""AMP's simulated annealing over strategies, to compare with enumeration.

A neighbour has another tmp or another dp, then any micro-batch and any tiling that go with these. It is
taken if it costs less, else with probability exp((cost − next) / (temperature · cost)): the temperature
is relative here, so that it means the same for steps of milliseconds and of minutes. It falls as 1, ½,
⅓ … of `TEMPERATURE`.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.3, algorithm 2 (where `randn` is uniform).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from autoddl.errors import AutoDDLError
from autoddl.search.rivals.amp.strategies import Strategy

# A neighbour that is 10 % dearer is taken with 1/e at first. Half of it changes nothing on both of the
# paper's set-ups; with twice one seed of ten fewer finds the optimum of the mixed one.
TEMPERATURE = 0.1


@dataclass(frozen=True)
class Annealed:
    """The best strategy, its cost, after how many evaluations it was found, and how many there were."""

    best: Strategy
    cost_s: float
    found_after: int
    evaluations: int


def anneal(
    space: Iterable[Strategy], cost_s: Callable[[Strategy], float], *, iterations: int, seed: int
) -> Annealed:
    """Return the best strategy that so many iterations of the paper's algorithm see.

    Raises:
        AutoDDLError: the space is empty.
    """
    random, by_degrees = Random(seed), defaultdict[tuple[int, int], list[Strategy]](list)
    for strategy in space:
        by_degrees[strategy.tmp, strategy.dp].append(strategy)
    if not by_degrees:
        raise AutoDDLError("annealing: no strategies; the devices have no tiling")
    current = random.choice([s for some in by_degrees.values() for s in some])
    current_s = cost_s(current)
    best = Annealed(current, current_s, 1, iterations + 1)
    for number in range(1, iterations + 1):
        place = random.randrange(2)  # which degree may change
        kept = (current.tmp, current.dp)[1 - place]
        near = [key for key in by_degrees if key[1 - place] == kept]
        after = random.choice(by_degrees[random.choice(near)])
        after_s = cost_s(after)
        if after_s < best.cost_s:
            best = Annealed(after, after_s, number + 1, iterations + 1)
        warmth = TEMPERATURE / number * current_s
        if random.random() < math.exp(min(current_s - after_s, 0.0) / warmth):
            current, current_s = after, after_s
    return best
