"""HAP's search: by turns the best program for some shares, and the best shares for that program.

It begins with shares by the speed of the devices. The real shares of the linear program are rounded to
whole units, equal ones within a kind, whose sum divides some dim; exact search plans on that mesh. It
ends where shares come again. It proves nothing: neither step looks at both, so the shares may be the
best for that program, and that program for these shares, where another pair is better.

    speeds 3:1 → 3/1 → a program with a gather → 2/1 → the same program → 2/1: two meshes were tried

Source: HAP (seed 001), "Load Balancing".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile_entries import Device
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shares import unit_vectors
from autoddl.search.baselines.axes import live
from autoddl.search.exact import primal_dual as exact
from autoddl.search.heuristics.descent import replicated
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.result import DEFAULTS, SearchOptions, SearchResult
from autoddl.search.rivals.hap.share_stages import stages_of
from autoddl.search.rivals.hap.shares_lp import best_shares

HAP = "hap"
MOST_UNITS = 16  # together


@dataclass(frozen=True)
class Alternation:
    """The best mesh and its program, and all that were looked at, in their turn."""

    mesh: Mesh
    result: SearchResult
    tried: Mapping[Mesh, SearchResult]


def search(
    problem_of: Callable[[Mesh], CostNetwork], mesh: Mesh, kinds: Mapping[str, Device],
    ranks: Sequence[str], options: SearchOptions = DEFAULTS, *, most_units: int = MOST_UNITS,
) -> Alternation:  # fmt: skip
    """Alternate until shares come again; the budget is that of each search for a program.

    `mesh` has one axis, `ranks` are the kinds of its devices. `problem_of` makes the problem on a mesh.

    Raises:
        AutoDDLError: the mesh has two axes and more, or all devices are of one kind.
        InfeasibleError: nothing fits into the memory.
    """
    if len(live(mesh.cuts)) > 1:
        raise AutoDDLError(
            f"search: got {HAP!r} on mesh {mesh}; it gives shares of one axis; give mesh='{mesh.size}'"
        )
    if len(set(ranks)) < 2:
        raise AutoDDLError(
            f"search: got {HAP!r} for devices of one kind; it gives unlike shares to unlike devices; "
            "give a cluster of several kinds, cluster='1*v100 + 1*t4'"
        )
    first, devices = problem_of(mesh), [kinds[kind] for kind in ranks]
    whole = stages_of(first, replicated(first), devices)
    speeds = 1 / np.array([stage.constant_s for stage in whole]).sum(axis=0)
    shares, tried = speeds / speeds.sum(), dict[Mesh, SearchResult]()
    totals = _totals(first, most_units)
    while True:
        mesh = _rounded(mesh, shares, ranks, totals)
        if mesh in tried:
            break
        problem = problem_of(mesh)
        tried[mesh] = exact.search(problem, options)
        shares = np.array(best_shares(stages_of(problem, tried[mesh].assignment, devices)))
    best = min(tried, key=lambda each: tried[each].cost_s)
    return Alternation(best, tried[best], tried)


def _totals(problem: CostNetwork, most: int) -> frozenset[int]:
    """Return into how many units some input or parameter can be cut."""
    program = problem.program
    names = (*program.inputs, *(p.tensor for p in program.parameters))
    lengths = {length for name in names for length in program.tensor[name].shape}
    return frozenset(n for n in range(1, most + 1) if any(length % n == 0 for length in lengths))


def _rounded(
    mesh: Mesh, shares: Sequence[float], ranks: Sequence[str], totals: frozenset[int]
) -> Mesh:
    """Return the mesh whose shares are nearest to real ones, of these the one of fewest units.

    Even shares are always allowed. The mean of a kind is no worse than what its devices have each: what
    is minimised is convex, and the same if they change places.
    """
    counts = Counter(ranks)
    mean = {
        kind: sum(s for s, k in zip(shares, ranks, strict=True) if k == kind) / count
        for kind, count in counts.items()
    }

    def off(units: tuple[int, ...]) -> tuple[float, int]:
        total = sum(n * count for n, count in zip(units, counts.values(), strict=True))
        pairs = zip(units, mean.values(), strict=True)
        return round(max(abs(n / total - share) for n, share in pairs), 12), total

    allowed = [u for u in unit_vectors([*counts.values()], max(totals)) if off(u)[1] in totals]
    nearest = min([(1,) * len(counts), *allowed], key=off)
    best = dict(zip(counts, nearest, strict=True))
    return Mesh((replace(mesh.axes[0], shares=tuple(best[kind] for kind in ranks)),))
