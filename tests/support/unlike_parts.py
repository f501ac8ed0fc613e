"""Plans whose stages are on meshes of several shapes, made by hand: for tests of what runs them."""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.api import Plan
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.search.baselines import BASELINES
from experiments.lib.oneflow_problems import build
from experiments.lib.staged_by_hand import staged_by_hand


def parted(
    micro: Program,
    meshes: Sequence[str],
    micro_batches: int,
    *,
    search: Sequence[str] = (),
    ranks: Sequence[Sequence[int]] = (),
    bounds: Sequence[int] = (),
    profile: Profile | None = None,
    compute_stream: bool = False,
) -> Plan:
    """Return a plan of the program of one micro-batch with a stage on each of some meshes.

    Each is in the states of a baseline, by default data parallelism. Unless told otherwise devices follow
    each other, and stages have equally many ops of the forward pass.
    """
    profile = profile or profiles.load(None)
    known = [Mesh.parse(text, profile.levels) for text in meshes]
    begin, parts = 0, []
    for number, mesh in enumerate(known):
        problem = build(micro, mesh, profile, compute_stream=compute_stream)
        name = search[number] if search else "data parallel"
        own = ranks[number] if ranks else range(begin, begin + mesh.size)
        assignment = BASELINES[name](problem)
        assert assignment is not None, name
        parts.append(StagePart(Assigned(problem, assignment), tuple(own)))
        begin += mesh.size
    cluster = Cluster.parse(str(begin), profile.levels)
    return Plan.of(staged_by_hand(parts, micro_batches, profile, cluster, bounds))
