"""What a plan costs with another profile, in the states that it has, and what planning again gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from autoddl.calls import uncollected
from autoddl.compare.plan_diff import TASKS, diff, samples_of
from autoddl.compare.staged_again import cluster_of_stages, staged_again, uncut
from autoddl.compare.variants import Read
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.explain.reopened import reopened
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.plan.parts import Estimate
from autoddl.plan.value import OWN, PlanValue
from autoddl.planner import choose
from autoddl.planner.memory_limits import parse_bytes, with_memory
from autoddl.planner.plan_options import ANY, AUTO, Options
from autoddl.planner.stages.stage_order import SEARCHED
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.rewrites.micro_batch import with_batch
from autoddl.sbp.rewrites.recomputed_layers import with_nothing_again
from autoddl.search.budget import Budget

_BUT = (
    "profile", "memory limit", "search", "order of ops", "ranks of each stage",
    "first module of each stage", "micro-batches in flight", TASKS,
)  # fmt: skip
"""What `difference` does not tell of two plans: it always differs, or follows from the rest."""


@dataclass(frozen=True)
class Recost:
    """A plan's predictions: `before` those that it was made with, `now` those of another profile.

    `limit_bytes` is the memory of a device now. `again` is what planning again finds, and `difference`
    what differs in it in one line; without it the `note` says why, "" where it was not asked for.
    """

    before_profile: str
    before: Estimate
    profile: str
    now: Estimate
    limit_bytes: int
    again: PlanValue | None = field(default=None, repr=False)
    difference: str = ""
    note: str = ""

    @property
    def fits(self) -> bool:
        """Tell whether the plan fits into the memory of the devices now."""
        return self.now.counted_bytes <= self.limit_bytes

    @property
    def gain(self) -> float | None:
        """Return which share of the step planning again spares."""
        if self.again is None or not self.now.step_s:
            return None
        return 1 - self.again.estimate.step_s / self.now.step_s

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, of planning again its prediction."""
        names = [each.name for each in fields(self) if each.name != "again"]
        told = {name: getattr(self, name) for name in names} | {"fits": self.fits}
        again = None if self.again is None else self.again.estimate
        return dict(msgspec.to_builtins({**told, "again": again}))


def recost(
    plan: PlanValue, profile: str | Path | Profile, read: Read | None, *,
    budget: float | Budget, cluster: str | Sequence[int] | Cluster | None = None,
    memory: str | float | None = None,
) -> Recost:  # fmt: skip
    """Return what a plan costs with a profile; with `read`, planned again within a budget as well.

    Raises:
        AutoDDLError: there is no such profile; it can't price the plan; says why.
    """
    if profile is None:
        raise AutoDDLError("recost: no profile given; name a bundled one, or a file of fit-network")
    known, allowed = profiles.load(profile, device_type=plan.device), Budget.of(budget)
    parts = [known.part(part.kinds) for part in plan.parts]
    limit = min(part.memory_bytes for part in parts) if memory is None else parse_bytes(memory)
    if memory is not None:
        known = with_memory(known, dict.fromkeys(known.devices, limit))
    devices = cluster_of_stages(plan, known, cluster)
    now = _priced(plan, known, devices)
    found = Recost(plan.profile, plan.estimate, known.name, now, limit)
    if read is None:
        return found
    try:
        again = _again(plan, known, devices, read, {"memory": limit, "budget": allowed})
    except InfeasibleError as error:
        return replace(found, note=f"nothing fits: {error}")
    except AutoDDLError as error:
        return replace(found, note=str(error))
    return replace(found, again=again, difference=diff(plan, again).in_words(_BUT))


def _priced(plan: PlanValue, known: Profile, devices: Cluster) -> Estimate:
    """Return what a plan's states take; exactly what it tells itself where the profile is its own."""
    with uncollected():
        if plan.pipelined:
            return staged_again(plan, known, devices).estimate(plan.estimate.name)
        return reopened(plan, known).chosen.estimate(plan.estimate.name)


def _again(
    plan: PlanValue, known: Profile, devices: Cluster, read: Read, given: Mapping[str, Any]
) -> PlanValue:
    """Return the best plan of the same step: on its mesh, or on any where that was chosen, too.

    Halves and parts of BatchNorm stay as the plan has them, and pins of `optimize` are not known. The
    search begins with the plan, so that in however little time it finds none that is slower on its mesh.
    """
    if any(len(part.kinds) > 1 and not part.device_kinds for part in plan.parts):
        raise AutoDDLError(
            "the plan does not tell which device is of which kind; plan with autoddl.optimize"
        )
    program, several = with_nothing_again(plan.program), len(plan.search.outcomes) > 1
    options = Options(
        profile=known if devices.kinds else known.part(plan.parts[0].kinds),
        objective=plan.search.objective, seed=plan.search.seed, **given,
    )  # fmt: skip
    if plan.pipelined:
        batch = samples_of(plan)
        if batch is None:
            raise AutoDDLError(
                "the plan's program does not tell its batch; plan with autoddl.optimize"
            )
        unlike = len({part.mesh for part in plan.parts}) > 1
        program = with_batch(uncut(plan), batch)
        options = replace(options, pipeline=AUTO, parts=ANY if unlike else AUTO)
    if plan.orders:
        order = plan.order_name
        options = replace(options, schedule=SEARCHED if order == OWN else order)
    if devices.kinds and all(each.stages == 1 for each in plan.search.outcomes):
        options = replace(options, pipeline=1)
    if several or plan.pipelined or devices.kinds:
        options = replace(options, cluster=devices)
    if not (several or plan.pipelined):
        options = replace(options, mesh=plan.mesh)
    with uncollected():
        (found,) = choose.best(replace(read(program, options), start=plan), 1)
    return replace(found, duplex=plan.duplex) if plan.duplex else found
