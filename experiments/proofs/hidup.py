"""Hold HiDup's costs and search against brute force: `python -m experiments.proofs.hidup`.

What two halves of a chain of stages take by equation 5, by its closed form and as two works that are
simulated has to be the same where every stage communicates. Where some do not the simulation may
differ, and any order of the halves' parts may be shorter than turns: both are reported. The search of
random chains has to find what the best of all signatures and divisions into stages takes, in one pass
and with a backward pass. The exit code is 1 where it is not so. GPTs (gpt2_small) of some layers are
planned, to compare.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import click
import numpy as np

import autoddl
from autoddl.perfmodel.simulation.event_simulation import Ints, Works
from autoddl.ragged import Ragged
from autoddl.sbp.program import Program
from autoddl.search.rivals.hidup.chain import Chain, Unit
from autoddl.search.rivals.hidup.duplex_time import as_printed_s, closed_form_s, reached
from autoddl.search.rivals.hidup.pareto import search
from experiments.bench.frozen.suite import PROFILE
from experiments.lib import cli
from experiments.lib.programs import captured

EXACT = 1e-12  # relative
LINK, DEVICE = 0, 1
MOST_STAGES, MOST_UNITS = 5, 6
ENOUGH = "10TB"

Seconds = Sequence[float]


@click.command(help=__doc__)
@click.option("--chains", default=1000, show_default=True, help="chains of stages, of each kind")
@click.option("--searched", default=200, show_default=True, help="chains of units")
@click.option("--layers", default="2,4,8", show_default=True, help="of GPTs; none if empty")
@click.option("--meshes", default="2,4,8", show_default=True, help="of one axis")
@click.option(
    "--profile",
    default=PROFILE,
    show_default=False,
    help="file or bundled name; by default the A100 of experiments.bench.frozen",
)
@cli.folder("out/hidup")
def command(
    chains: int, searched: int, layers: str, meshes: str, profile: str, folder: Path
) -> int:
    """Do all, and print what comes out."""
    wrong = _times(chains)
    wrong |= _searches(searched)
    for count in filter(None, layers.split(",")):
        program = captured(folder / f"gpt_{count}.json", "gpt", "gpt2_small", layers=int(count))
        for mesh in meshes.split(","):
            _plans(f"GPT of {count} layers on {mesh}", program, mesh, profile)
    return cli.MISSED if wrong else 0


def _plans(name: str, program: Program, mesh: str, profile: str) -> None:
    """Print the steps of both searches' plans, with any memory, and how long HiDup's takes."""
    ours, exact = (
        autoddl.optimize(program, mesh=mesh, profile=profile, memory=ENOUGH, search=search)
        for search in ("hidup", "exact")
    )
    step_s, least_s = ours.estimate.step_s, exact.estimate.step_s
    print(
        f"{name}: {1e3 * step_s:.1f} ms, found in {ours.search.seconds:.2f} s; exact: "
        f"{1e3 * least_s:.1f} ms, {least_s / step_s - 1:+.1%}"
    )


def _times(count: int) -> bool:
    """Print how eq. 5 compares for chains of each kind; tell whether it is wrong for the first one."""
    off = {}
    for kind in ("all c > 0", "some c = 0", "some c = 0 and p = 0"):
        errors, differ, below = [], [], []
        for seed in range(count):
            c, p = random_stages(np.random.default_rng(seed), kind)
            printed_s, simulated = as_printed_s(c, p), simulated_s(c, p)
            errors.append(abs(closed_form_s(c, p) / printed_s - 1))
            errors.append(abs([psi for psi, _ in reached(c, p)][-1] / printed_s - 1))
            differ.append(simulated / printed_s - 1)
            below.append(1 - best_order_s(c, p) / printed_s)
        off[kind] = max(errors) > EXACT, max(map(abs, differ)) > EXACT
        print(
            f"{count:,} chains, {kind}: eq. 5, (ψ, χ) and the closed form differ by {max(errors):.0e}; "
            f"the simulation by {min(differ):+.1%} to {max(differ):+.1%}, in "
            f"{sum(abs(d) > EXACT for d in differ)}; the best order is up to {max(below):.1%} shorter, "
            f"on average {np.mean(below):.1%}"
        )
    return any(formula for formula, _ in off.values()) or off["all c > 0"][1]


def _searches(count: int) -> bool:
    """Print how the search compares with brute force; tell whether it is wrong."""
    wrong = 0
    for passes in (1, 2):
        for seed in range(count):
            rng = np.random.default_rng((seed, passes))
            chain = random_chain(rng, MOST_UNITS if passes == 1 else MOST_UNITS - 1, passes)
            least_s = min(total for total, _ in assignments(chain))
            wrong += abs(search(chain).seconds / least_s - 1) > EXACT
        print(f"{count} chains of units, {passes} passes: the search missed the optimum in {wrong}")
    return wrong > 0


def random_stages(rng: np.random.Generator, kind: str) -> tuple[Seconds, Seconds]:
    """Return the seconds of communication and computation of two to five stages."""
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


if __name__ == "__main__":
    sys.exit(cli.run(command, "proofs.hidup"))
