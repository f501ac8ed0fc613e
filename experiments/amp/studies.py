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
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep
from autoddl.perfmodel.pipeline.pipeline_timeline import closed_form_s, simulate
from autoddl.perfmodel.profile import Profile
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.rivals.amp.estimate import AmpEstimate, LayerChain
from experiments.amp import profiles, setups
from experiments.amp.kinds import gpt
from experiments.amp.strategy_plans import StrategyPlans
from experiments.lib.programs import captured

GPT_MODULES: Mapping[int, str] = {
    0: "model.token", 1: "model", setups.HEAD - 1: "model.norm", setups.HEAD: "model.head",
    setups.HEAD + 1: "",
    **{unit: f"model.blocks.{number}" for number, unit in enumerate(setups.BLOCKS)},
}  # fmt: skip
GAN_MODULES: Mapping[int, str] = {
    0: "model.first", 54: "model.head", 55: "",
    **{unit: f"model.positions.{number}" for number, unit in enumerate(setups.POSITIONS)},
    **{unit: f"model.grow.{number}" for number, unit in enumerate(list(setups.GRIDS)[1:])},
    **{unit: f"model.blocks.{n}" for n, unit in enumerate((*setups.WIDE, *setups.NARROW))},
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

    `chain` is that of its layers, as measured or by their flops; `tables` are the numbers of Megatron's
    and of AMP's, `speed_up` is that of the best rows.
    """

    name: str
    program: Callable[[Path], Program]
    chain: Callable[[bool], LayerChain]
    batch: int
    modules: Mapping[int, str]
    tables: tuple[int, int]
    speed_up: float

    def estimate(self, *, measured: bool = False) -> AmpEstimate:
        """Return AMP's own price."""
        return AmpEstimate(setups.CLUSTERS[self.name], self.chain(measured), self.batch)

    def profile(self, folder: Path) -> Profile:
        """Return the profile, which the GPT calibrates whatever the model is."""
        return profiles.profile(micro_batch(gpt(folder), setups.BATCH))

    def plans(self, folder: Path, *, measured: bool = False) -> StrategyPlans:
        """Return AMP's strategies as plans; layers take what was measured, or what the profile says."""
        chain = self.chain(True)
        return StrategyPlans(
            self.program(folder), profiles.cluster(self.name), self.profile(folder), self.modules,
            len(chain.parameters), chain.seconds if measured else None,
        )  # fmt: skip

    def ours(self, folder: Path, budget_s: float) -> Plan:
        """Return the plan of the planner."""
        return autoddl.optimize(
            self.program(folder), cluster=profiles.cluster(self.name), profile=self.profile(folder),
            memory=profiles.MEMORY_BYTES, pipeline="auto", budget=budget_s,
        )  # fmt: skip


def transgan(folder: Path) -> Program:
    """Return the program of the generator of tables 10 and 11."""
    file = folder / "programs" / "transgan.json"
    return captured(file, "transgan", "transgan", batch=setups.GAN_BATCH)


def _of_gpt(name: str, tables: tuple[int, int], speed_up: float) -> Study:
    def chain(measured: bool) -> LayerChain:
        return setups.gpt(measured=measured)

    return Study(name, gpt, chain, setups.BATCH, GPT_MODULES, tables, speed_up)


STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        _of_gpt("homogeneous", (6, 7), 1.10),
        _of_gpt("mixed", (8, 9), 1.54),
        Study(
            "uneven", transgan, lambda _: setups.transgan(), setups.GAN_BATCH, GAN_MODULES,
            (10, 11), 1.77,
        ),
    )
}  # fmt: skip


def priced(staged: Staged) -> Seconds:
    """Return the seconds of stages.

    In OneFlow's schedule as many micro-batches are in flight as is faster, and fits.
    """
    oneflow_s = staged.timeline.step_s
    if staged.flying != staged.in_flight:
        other = staged.with_in_flight(staged.flying)
        faster = other.timeline.step_s < oneflow_s
        if faster and other.memory_bytes <= profiles.MEMORY_BYTES:
            oneflow_s = other.timeline.step_s
    return _seconds(staged.step, oneflow_s, staged.memory_bytes)


def priced_plan(plan: Plan) -> Seconds:
    """Return the seconds of a plan of the planner."""
    step_s, size = plan.estimate.step_s, plan.estimate.memory_bytes
    if not plan.pipelined:
        return Seconds(
            step_s, step_s, plan.estimate.compute_s + plan.estimate.communication_s, size
        )
    return _seconds(plan.pipeline_step, step_s, size)


def _seconds(step: PipelineStep, oneflow_s: float, memory_bytes: int) -> Seconds:
    stage_s = [sum(s for _, s in work.forward + work.backward) for work in step.stages]
    once_s = [sum(s for _, s in work.once) for work in step.stages]
    sent_s = [sent.seconds for sent in step.transfers]
    return Seconds(
        simulate(replace(step, schedule="1f1b")).step_s, oneflow_s,
        closed_form_s(stage_s, step.micro_batches, transfer_s=sent_s, once_s=once_s), memory_bytes,
    )  # fmt: skip
