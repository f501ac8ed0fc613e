"""Plans whose stages are on meshes of several shapes, made by hand: for tests of what runs them."""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.api import Plan
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.planner.assemble import staged_plan
from autoddl.planner.costs.assigned import Assigned
from autoddl.planner.costs.stage_links import Links
from autoddl.planner.costs.stage_moves import StagePart
from autoddl.planner.costs.staged_assignment import Staged
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.search.baselines import assignments
from autoddl.search.network.builder import build
from autoddl.search.result import SearchResult


def parted(
    micro: Program,
    meshes: Sequence[str],
    micro_batches: int,
    *,
    search: Sequence[str] = (),
    ranks: Sequence[Sequence[int]] = (),
    bounds: Sequence[int] = (),
    profile: Profile | None = None,
) -> Plan:
    """Return a plan of the program of one micro-batch with a stage on each of some meshes.

    Each is in the states of a baseline, by default data parallelism. Unless told otherwise devices follow
    each other, and stages have equally many ops of the forward pass.
    """
    profile = profile or profiles.load(None)
    known = [Mesh.parse(text, profile.levels) for text in meshes]
    begin, parts = 0, []
    for number, mesh in enumerate(known):
        problem = build(micro, mesh, profile, any_batch=True)
        name = search[number] if search else "data parallel"
        own = ranks[number] if ranks else range(begin, begin + mesh.size)
        parts.append(StagePart(Assigned(problem, assignments(problem)[name]), tuple(own)))
        begin += mesh.size
    found = positions(micro)
    cuts = bounds or [found.count * n // len(meshes) for n in range(1, len(meshes))]
    links = Links(profile, Cluster.parse(str(begin), profile.levels))
    staged = Staged(parts, found, cuts, micro_batches, links)
    result = SearchResult("by hand", parts[0].assigned.assignment, 0.0, 0.0, 0, ())
    return Plan.of(staged_plan(staged, result))
