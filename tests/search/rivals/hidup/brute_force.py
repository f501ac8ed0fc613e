"""What two halves of a chain take, and the best of all its assignments, by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from autoddl.perfmodel.simulation.event_simulation import Ints, Works
from autoddl.ragged import Ragged
from autoddl.search.rivals.hidup.chain import Chain, Unit

LINK, DEVICE = 0, 1
MOST_STAGES = 4

Seconds = Sequence[float]


def as_printed_s(comm_s: Seconds, comp_s: Seconds) -> float:
    """Return what both halves of a chain of stages take, by HiDup's equations 4 and 5 as printed."""
    psi = phi = 0.0
    for comm, comp in zip(comm_s, comp_s, strict=True):
        psi = psi + phi + max(-phi, comm) + max(comm, comp) + comp
        phi = -comp
    return psi


def random_stages(rng: np.random.Generator, kind: str) -> tuple[Seconds, Seconds]:
    """Return the seconds of communication and computation of two to four stages."""
    count = int(rng.integers(2, MOST_STAGES + 1))
    c, p = rng.exponential(size=(2, count))
    if "c = 0" in kind:
        c[rng.random(count) < 0.4] = 0
    if "p = 0" in kind:
        p[rng.random(count) < 0.4] = 0
        p[0] += 1e-3  # something has to take time
    c[0] = 0
    return c.tolist(), p.tolist()


def simulated_s(comm_s: Seconds, comp_s: Seconds) -> float:
    """Return what two copies of a chain take in the simulation of steps; no boxing takes 0 s there."""
    stages = zip(comm_s, comp_s, strict=True)
    parts = [(on, s) for c, p in stages for on, s in ((LINK, c), (DEVICE, p)) if on or s > 0]
    row, seconds = zip(*parts, strict=True)
    none = np.zeros(0, dtype=np.int64)
    return Works.of(
        ["1", "2"], ["link", "device"], Ragged.of([row, row]), np.array(seconds * 2), none, none
    ).end_s


def best_order_s(comm_s: Seconds, comp_s: Seconds) -> float:
    """Return the least that two copies of a chain take in any order, by trying all of them.

    Parts that take no time wait for nothing.
    """
    both = [part for stage in zip(comm_s, comp_s, strict=True) for part in stage][1:]
    order = _orders(len(both))
    place = np.zeros((2, len(order)), dtype=np.int64)  # of each half
    ready, free = np.zeros((2, len(order))), np.zeros((2, len(order)))
    seconds, every = np.array(both), np.arange(len(order))
    for half in order.T:
        part = place[half, every]
        on, takes = 1 - part % 2, seconds[part]
        ends = np.where(
            takes > 0, np.maximum(ready[half, every], free[on, every]) + takes, ready[half, every]
        )
        ready[half, every] = ends
        free[on, every] = np.where(takes > 0, ends, free[on, every])
        place[half, every] += 1
    return float(ready.max(axis=0).min())


@cache
def _orders(parts: int) -> Ints:
    """Return in which turns two halves can run so many parts each; the first one begins."""
    rest = itertools.combinations(range(1, 2 * parts), parts)
    found = []
    for second in rest:
        row = np.zeros(2 * parts, dtype=np.int64)
        row[list(second)] = 1
        found.append(row)
    return np.array(found)


def random_chain(rng: np.random.Generator, most: int, passes: int) -> Chain:
    """Return a chain of units with two or three forms on each cut, some moves of which are free."""
    count = int(rng.integers(2, most + 1))
    forms = rng.integers(2, 4, size=count + 1)
    units = []
    for unit in range(count):
        number = int(rng.integers(2, 4))
        before, after = (rng.integers(0, forms[unit + at], size=number) for at in (0, 1))
        once_s = rng.exponential(0.2, size=number) * (rng.random(number) < 0.3)
        units.append(Unit(before, after, rng.exponential(size=(number, passes)), once_s))
    moves = []
    for number in forms[1:-1].tolist():
        costs = rng.exponential(size=(passes, number, number)) * (
            rng.random((number, number)) < 0.8
        )
        costs[:, range(number), range(number)] = 0
        moves.append(costs)
    return Chain(units, moves, np.arange(forms[-1]))


def assignments(chain: Chain) -> Iterator[tuple[float, Sequence[int]]]:
    """Yield what every assignment takes by equation 5, with its signatures.

    A backward pass is the rest of one long chain: no communication lies between the two.
    """
    for signatures in itertools.product(*[range(len(unit.before)) for unit in chain.units]):
        chosen = list(zip(chain.units, signatures, strict=True))
        once_s = sum(float(unit.once_s[s]) for unit, s in chosen)
        comp = [unit.seconds[s] for unit, s in chosen]
        ends = [(int(unit.before[s]), int(unit.after[s])) for unit, s in chosen]
        between = [(a, b) for (_, a), (b, _) in itertools.pairwise(ends)]
        free = [(True, False) if a == b else (True,) for a, b in between]
        for begins in itertools.product(*free):
            c, p = [0 * comp[0]], [comp[0]]
            for begun, (a, b), moves, more in zip(
                begins, between, chain.moves, comp[1:], strict=True
            ):
                if begun:
                    c.append(moves[:, a, b])
                    p.append(more)
                else:
                    p[-1] = p[-1] + more
            comm, work = np.array(c).T.tolist(), np.array(p).T.tolist()
            if chain.passes == 2:
                comm = [[*comm[0], 0.0, *comm[1][:0:-1]]]
                work = [[*work[0], *work[1][::-1]]]
            yield once_s + as_printed_s(comm[0], work[0]), signatures
