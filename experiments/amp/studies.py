"""AMP's set-ups as studies: a cluster, a model with its units, the tables that the paper prints of it.

Ours are planned by `autoddl.optimize` for the same program, cluster, profile and memory; seconds are
those of a simulated step. A set-up is one more entry of `STUDIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import autoddl
from autoddl.api import Plan
from autoddl.perfmodel.pipeline.pipeline_timeline import simulate
from autoddl.perfmodel.profile import Profile
from autoddl.planner.costs.staged_assignment import Staged
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.amp.estimate import AmpEstimate, LayerChain
from experiments.amp import profiles, setups
from experiments.amp.kinds import gpt, in_1f1b
from experiments.amp.strategy_plans import StrategyPlans

GPT_MODULES: Mapping[int, str] = {
    0: "model.token", 1: "model", 27: "model.norm", setups.HEAD: "model.head", 29: "",
    **{unit: f"model.blocks.{unit - setups.BLOCKS[0]}" for unit in setups.BLOCKS},
}  # fmt: skip


class Seconds(NamedTuple):
    """What a step takes in strict 1F1B, in OneFlow's schedule, and where nothing overlaps; the bytes."""

    strict_s: float
    oneflow_s: float
    closed_form_s: float
    memory_bytes: int

    @property
    def fits(self) -> bool:
        """Tell whether it fits into AMP's devices."""
        return self.memory_bytes <= profiles.MEMORY_BYTES


@dataclass(frozen=True)
class Study:
    """A set-up: a cluster of this name, a model and its units, and what the paper prints of both.

    `tables` are the numbers of Megatron's and of AMP's, `speed_up` is that of the best rows. `timed`
    begins the names of the modules that took all of the paper's seconds, if these were not all; `chain`
    is then of these, too.
    """

    name: str
    program: Callable[[Path], Program]
    chain: Callable[[bool], LayerChain]
    batch: int
    modules: Mapping[int, str]
    tables: tuple[int, int]
    speed_up: float
    timed: str = ""

    def estimate(self, *, whole: bool = True) -> AmpEstimate:
        """Return AMP's own price, where the whole model takes time or the timed modules alone."""
        return AmpEstimate(setups.CLUSTERS[self.name], self.chain(whole), self.batch)

    def profile(self, folder: Path, timed: str = "") -> Profile:
        """Return the profile, which the GPT calibrates whatever the model is."""
        return profiles.profile(micro_batch(gpt(folder), setups.BATCH), timed)

    def plans(self, folder: Path, *, whole: bool = True) -> StrategyPlans:
        """Return AMP's strategies as plans, where the whole model takes time or timed modules alone."""
        timed = "" if whole else self.timed
        return StrategyPlans(
            self.program(folder), profiles.cluster(self.name), self.profile(folder, timed), self.modules,
            len(self.chain(True).parameters), timed,
        )  # fmt: skip

    def ours(self, folder: Path, budget_s: float) -> Plan:
        """Return the plan of the planner."""
        return autoddl.optimize(
            self.program(folder), cluster=profiles.cluster(self.name), profile=self.profile(folder),
            memory=profiles.MEMORY_BYTES, pipeline="auto", budget=budget_s,
        )  # fmt: skip


def _of_gpt(name: str, tables: tuple[int, int], speed_up: float) -> Study:
    return Study(
        name, gpt, lambda whole: setups.gpt(head=whole), setups.BATCH, GPT_MODULES, tables, speed_up,
        timed="model.blocks.",
    )  # fmt: skip


STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (_of_gpt("homogeneous", (6, 7), 1.10), _of_gpt("mixed", (8, 9), 1.54))
}


def priced(staged: Staged) -> Seconds:
    """Return the seconds of stages.

    In OneFlow's schedule as many micro-batches are in flight as is faster, and fits.
    """
    strict_s = simulate(replace(staged.step, schedule="1f1b")).step_s
    oneflow_s, size = staged.timeline.step_s, staged.memory_bytes
    if staged.flying != staged.in_flight:
        other = staged.with_in_flight(staged.flying)
        if other.timeline.step_s < oneflow_s and other.memory_bytes <= profiles.MEMORY_BYTES:
            oneflow_s = other.timeline.step_s
    return Seconds(strict_s, oneflow_s, staged.bounded_s, size)


def priced_plan(plan: Plan) -> Seconds:
    """Return the seconds of a plan of the planner."""
    closed_s = plan.search.lower_bound_s / (1 - plan.search.gap)
    step_s = plan.estimate.step_s
    strict_s = in_1f1b(plan) if plan.pipelined else step_s
    return Seconds(strict_s, step_s, closed_s, plan.estimate.memory_bytes)
