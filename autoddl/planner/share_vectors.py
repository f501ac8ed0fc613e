"""Which shares are tried where devices are of several kinds: each vector of shares is one more mesh.

All nodes of a kind have equal shares, in whole units, few enough that dims of models divide. Of a kind
that takes 1 s for all compute of the program and one that takes 3 s the shares 3/1 take 0.75 s on both;
2/1 take 0.67 and 1 s. What an op takes however little of it there is counts as well: with 0.1 and 0.3 s of
that, of these, 4/1 are better. Those of the shortest compute are tried; what they do to communication
is for the search to find.

Source: HAP (seed 001), sharding ratios: a linear program over real ones, alternated with the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.planner.request import Request
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.shares import unit_vectors
from autoddl.sbp.state import broadcast

MOST_UNITS = 16  # of all nodes together: batches are rarely divided by more
TRIED = 3  # vectors for each mesh: each is a search of its own


def share_meshes(request: Request) -> Iterator[Mesh]:
    """Yield the meshes with shares on the outermost level that are worth a search."""
    cluster, kinds = request.cluster, Counter(request.cluster.kinds)
    if not (request.shares and request.engine.limits.shares) or len(kinds) < 2 or cluster.sizes:
        return
    vectors = share_vectors(kinds, compute_s(request.program, request.profile, cluster))
    outer, lengths = cluster.levels[0], _lengths(request.program)
    for mesh in cluster.meshes(request.most_axes):
        if mesh.axes[0].size != outer.size or mesh.axes[0].level != outer.name:
            continue  # an axis of its own for nodes of unlike kinds
        usable = [v for v in vectors if any(n % _units(v, kinds) == 0 for n in lengths)]
        for vector in usable[:TRIED]:
            shares = tuple(vector[kind] for kind in cluster.kinds)
            yield replace(mesh, axes=(replace(mesh.axes[0], shares=shares), *mesh.axes[1:]))


def share_vectors(
    kinds: Mapping[str, int], seconds: Mapping[str, tuple[float, float]]
) -> list[Mapping[str, int]]:
    """Return units for a node of each kind, those of the shortest compute first, better than even ones.

    `kinds` counts the nodes of each, `seconds` are those of all compute on one node of a kind: what all ops
    take whatever their share, and what this is multiplied with.
    """

    def takes_s(vector: Mapping[str, int]) -> float:
        total = _units(vector, kinds)
        return max(seconds[kind][0] + n / total * seconds[kind][1] for kind, n in vector.items())

    even = takes_s(dict.fromkeys(kinds, 1))
    vectors = unit_vectors([*kinds.values()], MOST_UNITS)
    found = [dict(zip(kinds, units, strict=True)) for units in vectors]
    found = [v for v in found if takes_s(v) < even]
    return sorted(found, key=lambda vector: (takes_s(vector), _units(vector, kinds)))


def compute_s(
    program: Program, profile: Profile, cluster: Cluster
) -> Mapping[str, tuple[float, float]]:
    """Return the seconds of all ops of a program on one device of each kind, nothing cut.

    Those of their launches come first, then what remains of them.
    """
    whole = {
        op.name: dict.fromkeys([o for o, _ in op.operands], broadcast(1)) for op in program.ops
    }
    works = [OpWork.of(program, op, whole[op.name], (1,)) for op in program.ops]
    found = {}
    for kind in dict.fromkeys(cluster.kinds):
        (device,) = profile.part([kind]).devices.values()
        fixed = sum(device_s(device, work._replace(flops=0.0, moved_bytes=0.0)) for work in works)
        found[kind] = fixed, sum(device_s(device, work) for work in works) - fixed
    return found


def _units(vector: Mapping[str, int], kinds: Mapping[str, int]) -> int:
    return sum(vector[kind] * count for kind, count in kinds.items())


def _lengths(program: Program) -> set[int]:
    """Return the lengths of the dims that could be cut: those of inputs and parameters."""
    names = (*program.inputs, *(p.tensor for p in program.parameters))
    return {length for name in names for length in program.tensor[name].shape}
