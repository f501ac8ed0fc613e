"""Which shares are tried where devices are of several kinds: each vector of shares is one more mesh.

All nodes of a kind have equal shares, in whole units, few enough that dims of models divide. Of a kind
that takes 1 s for all compute of the program and one that takes 3 s the shares 3/1 take 0.75 s on both;
2/1 take 0.67 and 1 s. An op has a part that its share does not change, its launch: with 0.1 s of that on
the fast kind and 0.3 s on the slow one 4/1 take 0.9 s on both. Those of the shortest compute, op by op on
the slowest, are tried; what they do to communication is for the search to find.

Source: HAP (seed 001), sharding ratios: a linear program over real ones, alternated with the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.planner.request import Request
from autoddl.planner.stages.part_classes import PartClass, Pools
from autoddl.planner.uneven.given_shares import cut_lengths, why_even
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.shares import unit_vectors
from autoddl.sbp.state import broadcast
from autoddl.search.result import SearchOptions
from autoddl.search.rivals.hap import alternation
from autoddl.search.solvers.named import HAP

Floats = npt.NDArray[np.float64]

MOST_UNITS = 16  # of all nodes together: batches are rarely divided by more
ROUND = 0.25  # of the budget, for each program that HAP's alternation searches for
TRIED = 3  # vectors for each mesh in a turn: each is a search of its own
TURNS = 3  # at 8:1 11/1, 15/1, 7/1; 5/1, 13/3, 3/1; 11/5, 2/1, 5/3, which are near to even


def share_meshes(request: Request, turn: int = 0) -> Iterator[Mesh]:
    """Yield the meshes with shares on the outermost level that are worth a search.

    In later turns those come that are worth one where none of the turns before fits into memory.
    """
    if request.cluster.sizes or not _are_tried(request):
        return
    seconds = _compute_s(request)
    for mesh in request.cluster.meshes(request.most_axes):
        found = _with_shares(request, mesh, request.cluster.kinds, seconds)
        yield from islice(found, turn * TRIED, (turn + 1) * TRIED)


def share_classes(request: Request, classes: Iterable[PartClass]) -> Iterator[PartClass]:
    """Yield classes of parts that have nodes of several kinds, with the best shares for these.

    Devices of a part are in the order of their ranks; where nodes of kinds take turns in that, and of
    all devices, there are none.
    """
    if not _are_tried(request):
        return
    pools, seconds = Pools.of(request.cluster), _compute_s(request)
    for one in classes:
        parts = zip(pools.ranks, pools.kinds, one.needs, pools.per_node, strict=True)
        used = sorted(part for part in parts if part[2])
        mixed = any(a[0][-1] > b[0][0] for a, b in pairwise(used))
        if mixed or sum(one.needs) == request.cluster.size:
            continue
        nodes = [kind for _, kind, need, size in used for _ in range(need // size)]
        devices = tuple(kind for _, kind, need, _ in used for _ in range(need))
        for mesh in islice(_with_shares(request, one.mesh, nodes, seconds), 1):
            yield PartClass(mesh, one.needs, devices)


def _are_tried(request: Request) -> bool:
    """Tell whether there are several kinds, and nothing asks for even cuts."""
    return len(set(request.cluster.kinds)) > 1 and not why_even(request, request.engine)


def _compute_s(request: Request) -> Mapping[str, Floats]:
    return compute_s(request.program, request.profile, request.cluster)


def _with_shares(
    request: Request, mesh: Mesh, kinds: Sequence[str], seconds: Mapping[str, Floats]
) -> Iterator[Mesh]:
    """Yield a mesh with shares for nodes of these kinds, of the shortest compute first.

    Its outermost axis has to be that of the nodes.
    """
    axis, *inner = mesh.axes
    counts, lengths = Counter(kinds), cut_lengths(request.program)
    if len(counts) < 2 or (axis.size, axis.level) != (len(kinds), request.cluster.levels[0].name):
        return
    for vector in share_vectors(counts, {kind: seconds[kind] for kind in counts}):
        if any(n % _units(vector, counts) == 0 for n in lengths):
            shares = tuple(vector[kind] for kind in kinds)
            yield replace(mesh, axes=(replace(axis, shares=shares), *inner))


def alternated_mesh(request: Request) -> Mesh:
    """Return the mesh of the shares that HAP's alternation finds.

    Raises:
        AutoDDLError: there are several axes, no kinds, or nothing that can have shares.
    """
    cluster = request.cluster
    mesh = request.mesh or next(cluster.meshes(1), None)
    if mesh is None:
        raise AutoDDLError(
            f"search: got {HAP!r} on cluster {cluster}; it gives shares of one axis; give nodes of one "
            f"device, cluster='1*v100 + 1*t4', or another search"
        )
    if why := why_even(request, request.engine):
        raise AutoDDLError(f"search: got {HAP!r} with {why}")
    allowance = request.budget.begin()
    options = SearchOptions(
        budget=ROUND * allowance.seconds, clock=allowance.clock, memory_bytes=request.limit_bytes
    )
    ranks = [cluster.kind(device) for device in range(cluster.size)]
    return alternation.search(request.problem, mesh, request.profile.devices, ranks, options).mesh


def share_vectors(
    kinds: Mapping[str, int], seconds: Mapping[str, Floats]
) -> list[Mapping[str, int]]:
    """Return units for a node of each kind, those of the shortest compute first, better than even ones.

    `kinds` counts the nodes of each; `seconds[kind][0, i]` are those of op i on a node of a kind whatever
    its share is, `seconds[kind][1, i]` what the share multiplies.
    """

    def takes_s(vector: Mapping[str, int]) -> float:
        total = _units(vector, kinds)
        each = [seconds[kind][0] + n / total * seconds[kind][1] for kind, n in vector.items()]
        return float(np.max(each, axis=0).sum())

    even = takes_s(dict.fromkeys(kinds, 1))
    vectors = [
        dict(zip(kinds, u, strict=True)) for u in unit_vectors([*kinds.values()], MOST_UNITS)
    ]
    found = [(takes_s(vector), _units(vector, kinds), vector) for vector in vectors]
    return [v for s, _, v in sorted(found, key=lambda each: each[:2]) if s < even]


def compute_s(program: Program, profile: Profile, cluster: Cluster) -> Mapping[str, Floats]:
    """Return what ops take on one device of each kind, nothing cut: their launches, then what remains."""
    whole = {
        op.name: dict.fromkeys([o for o, _ in op.operands], broadcast(1)) for op in program.ops
    }
    works = [OpWork.of(program, op, whole[op.name], (1,)) for op in program.ops]
    launches = [work._replace(flops=0.0, moved_bytes=0.0) for work in works]
    found = {}
    for kind in dict.fromkeys(cluster.kinds):
        (device,) = profile.part([kind]).devices.values()
        first, every = ([device_s(device, work) for work in some] for some in (launches, works))
        found[kind] = np.array([first, np.subtract(every, first)])
    return found


def _units(vector: Mapping[str, int], kinds: Mapping[str, int]) -> int:
    return sum(vector[kind] * count for kind, count in kinds.items())
