"""AMP's set-ups: a cluster, a model with its units, the strategies that the paper prints (paper.json).

A row of a printed table has samples per micro-batch, the degrees of tensor and pipeline parallelism, the
cut in units, and the seconds. All devices are used: dp = 16 / (tmp · stages).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import autoddl
from autoddl.api import Plan
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep
from autoddl.perfmodel.pipeline.pipeline_timeline import closed_form_s, simulate
from autoddl.perfmodel.profile import Profile
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.search.rivals.amp.estimate import AmpEstimate
from autoddl.search.rivals.amp.strategies import Strategy, megatron_stages
from experiments.amp import setups
from experiments.amp.strategy_plans import StrategyPlans
from experiments.lib.programs import captured

PAPER: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text())
NODES, PER_NODE = 4, 4
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
UNEVEN = "uneven"  # the set-up that trains TransGAN's generator; the others train a GPT


class PrintedRow(NamedTuple):
    """A strategy and its seconds per step, None where it was out of memory; `pp` as printed."""

    mbs: int
    tmp: int
    pp: int
    cut: tuple[int, ...]
    seconds: float | None

    @property
    def stages(self) -> int:
        """Return how many stages the cut has."""
        return len(self.cut) - 1

    @property
    def strategy(self) -> Strategy:
        """Return the strategy in Megatron's placement on the 16 devices."""
        dp = NODES * PER_NODE // (self.tmp * self.stages)
        return Strategy(self.tmp, dp, self.mbs, megatron_stages(NODES * PER_NODE, self.tmp, dp))


TABLES = {
    table: [PrintedRow(mbs, tmp, pp, tuple(cut), s) for mbs, tmp, pp, cut, s in rows]
    for table, rows in PAPER["tables"].items()
}


class Seconds(NamedTuple):
    """What a step takes in strict 1F1B, in OneFlow's schedule, and where nothing overlaps; the bytes."""

    strict_s: float
    oneflow_s: float
    closed_form_s: float
    memory_bytes: int

    @property
    def fits(self) -> bool:
        """Tell whether it fits into AMP's devices."""
        return self.memory_bytes <= setups.MEMORY_BYTES


@dataclass(frozen=True)
class AmpStudy:
    """A set-up by its name in paper.json; programs are kept in a folder."""

    name: str
    folder: Path

    @property
    def told(self) -> Mapping[str, Any]:
        """Return the cluster, the tables of Megatron's and of AMP's rows, the speed-up of the best."""
        found: Mapping[str, Any] = PAPER["set-ups"][self.name]
        return found

    @property
    def cluster(self) -> Cluster:
        """Return the cluster."""
        return Cluster.parse(" + ".join(f"1*{kind}x{PER_NODE}" for kind in self.told["kinds"]))

    @property
    def modules(self) -> Mapping[int, str]:
        """Return by unit the module with whose ops it begins."""
        return GAN_MODULES if self.name == UNEVEN else GPT_MODULES

    @property
    def batch(self) -> int:
        """Return the samples of a step."""
        return setups.GAN_BATCH if self.name == UNEVEN else setups.BATCH

    def program(self) -> Program:
        """Return a training step of the model."""
        if self.name != UNEVEN:
            return self.gpt()
        file = self.folder / "programs" / "transgan.json"
        return captured(file, "transgan", "transgan", batch=setups.GAN_BATCH)

    def gpt(self) -> Program:
        """Return a training step of the GPT of tables 6 to 9."""
        sizes: dict[str, Any] = {
            "layers": len(setups.BLOCKS), "width": setups.WIDTH, "heads": 16,
            "sequence": setups.LENGTH, "vocabulary": setups.VOCABULARY, "batch": setups.BATCH,
        }  # fmt: skip
        return captured(self.folder / "programs" / "gpt.json", "gpt", "toy", **sizes)

    def profile(self) -> Profile:
        """Return the profile, which the GPT calibrates whatever the model is."""
        return setups.profile(micro_batch(self.gpt(), setups.BATCH))

    def plans(self, *, measured: bool = False) -> StrategyPlans:
        """Return AMP's strategies as plans; layers take what was measured, or what the profile says."""
        uneven = self.name == UNEVEN
        taken_s = (
            {"v100": setups.transgan_s()}
            if uneven
            else {k: setups.gpt_s(k) for k in setups.WHOLE_S}
        )
        return StrategyPlans(
            self.program(), self.cluster, self.profile(), self.modules,
            setups.GAN_UNITS if uneven else setups.UNITS, taken_s if measured else None,
        )  # fmt: skip

    def estimate(self) -> AmpEstimate:
        """Return AMP's own price, for which layers take what the profile says."""
        chain = setups.transgan_chain if self.name == UNEVEN else setups.gpt_chain
        layers = chain(self.plans().unit_s())
        return AmpEstimate(self.cluster, setups.INSIDE, setups.OUTSIDE, layers, self.batch)

    def ours(self, budget_s: float) -> Plan:
        """Return the plan of the planner for the same program, cluster, profile and memory."""
        return autoddl.optimize(
            self.program(), cluster=self.cluster, profile=self.profile(),
            memory=setups.MEMORY_BYTES, pipeline="auto", budget=budget_s,
        )  # fmt: skip


def priced(staged: Staged) -> Seconds:
    """Return the seconds of stages.

    In OneFlow's schedule as many micro-batches are in flight as is faster, and fits.
    """
    oneflow_s = staged.timeline.step_s
    if staged.flying != staged.in_flight:
        other = staged.with_in_flight(staged.flying)
        faster = other.timeline.step_s < oneflow_s
        if faster and other.memory_bytes <= setups.MEMORY_BYTES:
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
