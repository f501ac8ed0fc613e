"""Plans that are made in the belief that all devices are alike, priced on the devices that are there.

Each number of equal stages and of micro-batches is planned under a profile of devices that are all alike;
its cut and its states then stand on a cluster of unlike ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

from msgspec import structs

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.planner.race import Solution
from autoddl.planner.request import Request
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_moves import StagePart
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.stages.staged_trial import staged_trials
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.budget import Budget
from autoddl.search.result import SearchResult
from experiments.lib import oneflow_problems


class Blind(NamedTuple):
    """A plan with equal stages: what it was believed to take, and what it is on the real devices."""

    believed_s: float
    real: Staged
    result: SearchResult


def plans(
    program: Program, cluster: Cluster, known: Profile, kind: str, seconds: float
) -> Iterator[Blind]:
    """Yield the plan of each number of equal stages and of micro-batches, searched for so long.

    All devices are believed to be of a `kind`, with the links of groups of all, the slowest.
    """
    believed = structs.replace(known.part(known.kinds), devices={ALIKE: known.devices[kind]})
    read = partial(oneflow_problems.read, program, pipeline="auto")
    alike = "x".join(str(level.size) for level in cluster.levels)
    asked = read(cluster=alike, profile=believed)
    truth = read(cluster=cluster, profile=known)
    micro = cache(partial(micro_batch, program))
    for trial in staged_trials(asked, micro):
        try:
            *_, last = trial.search(Budget(seconds=seconds).begin(), rough=True)
        except AutoDDLError:  # no such mesh or micro-batches
            continue
        if isinstance(last, Solution) and isinstance(last.found, Staged):
            real = on_devices(last.found, truth, micro(trial.candidate.micro_batches))
            yield Blind(last.judged_s, real, last.result)


def on_devices(found: Staged, truth: Request, micro: Program) -> Staged:
    """Return the same stages and states at the prices of the devices on which they are."""

    @cache
    def problem(kinds: tuple[str, ...]) -> Assigned:
        mesh = found.assigned(0).problem.mesh
        return Assigned(truth.problem(mesh, micro, kinds), found.assigned(0).assignment)

    parts = [
        StagePart(problem(tuple(sorted({truth.cluster.kind(r) for r in part.ranks}))), part.ranks)
        for part in found.parts
    ]
    links = Links(truth.profile, truth.cluster)
    return Staged(
        parts, positions(micro), found.bounds, found.micro_batches, links,
        recomputed=found.recomputed, in_flight=found.in_flight,
    )  # fmt: skip
