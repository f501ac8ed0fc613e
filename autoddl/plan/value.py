"""A plan: which state every tensor has on the devices that hold it, and what a step costs.

Plans are frozen values. They can look things up in themselves, and nothing else: what runs, prints,
saves or writes them gets them as an argument.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autoddl.engine.model import CollectiveQueue, EngineModel
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep, TransferWork
from autoddl.perfmodel.pipeline.pipeline_timeline import Timeline, simulate
from autoddl.perfmodel.pipeline.schedules import GPIPE, ONE_F_ONE_B
from autoddl.perfmodel.pipeline.step_tasks import (
    Link,
    StepTasks,
    links_between,
    scheduled,
    tasks_of,
)
from autoddl.plan.parts import Estimate, InputPlan, ModuleCost, Part, Transfer
from autoddl.plan.search_report import SearchReport
from autoddl.plan.stage_messages import pipeline_step, script_messages, sent_works
from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.registry import written
from autoddl.sbp.state import NdSbp

OWN = "own"  # order of tasks, of no schedule
ROOMY = "in more memory"
"""The baseline that has the same states, and computes nothing again."""


@dataclass(frozen=True)
class PlanValue:
    """States for all tensors of a program, and the predicted costs of a step.

    `parts` are the stages, each on devices of its own; one without stages. Of a batch that goes
    through them in several `micro_batches` the program is that of one; gradients are summed up over
    all, and updates come once. With `duplex` the program is that of two halves of the batch in turn
    (sbp.rewrites.halves). A plan for an `engine` without a name may have states that none executes. With
    `compute_stream` boxings run as ops of the compute stream, on CUDA devices, else those there share a
    `queue`, with these settings. `orders` say in which order stages do their tasks
    (perfmodel.pipeline.step_tasks), () as the engine's schedule has it. `baselines` that did not decide
    on the plan are estimated when they are first read.
    """

    program: Program = field(repr=False)
    engine: EngineModel
    profile: str
    parts: tuple[Part, ...]
    estimate: Estimate
    search: SearchReport
    baselines: Sequence[Estimate] = ()
    micro_batches: int = 1
    memory_limit_bytes: int | None = None
    compute_stream: bool = False
    duplex: bool = False
    queue: CollectiveQueue | None = None
    orders: tuple[str, ...] = ()

    @property
    def pipelined(self) -> bool:
        """Tell whether micro-batches go through it, or several parts."""
        return len(self.parts) > 1 or self.micro_batches > 1

    @property
    def parted(self) -> bool:
        """Tell whether its inputs are parts of the batch: micro-batches, or halves."""
        return self.pipelined or self.duplex

    @property
    def fingerprint(self) -> str:
        """Return what tells its program from others; of parts of a batch, whatever their size."""
        return self.program.structure if self.parted else self.program.fingerprint

    @cached_property
    def states(self) -> str:
        """Return 12 hex digits that tell it from plans of other states, meshes, stages or micro-batches.

        In what order ops go, and what they take, does not count.
        """
        parts = [
            [
                part.mesh.describe(),
                part.ranks,
                sorted(
                    (op, sorted((name, str(state)) for name, state in signature.items()))
                    for op, signature in part.layout.signatures.items()
                ),
                *(
                    sorted((name, str(state)) for name, state in kept.items())
                    for kept in (part.layout.variables, part.layout.inputs)
                ),
            ]
            for part in self.parts
        ]
        ways = [self.micro_batches, self.compute_stream, self.duplex, self.program.fingerprint]
        return hashlib.sha256(json.dumps([ways, parts]).encode()).hexdigest()[:12]

    @property
    def device(self) -> str:
        """Return the type of the devices."""
        return self.program.device

    @property
    def mesh(self) -> Mesh:
        """Return the mesh of the first part; without stages that of all devices."""
        return self.parts[0].mesh

    @property
    def devices_text(self) -> str:
        """Return the meshes of all parts in words; of equal ones how many there are."""
        meshes = [part.devices_text for part in self.parts]
        if len(set(meshes)) > 1:
            return f"stages of meshes {', '.join(meshes)}"
        return (
            f"{len(meshes)} stages of mesh {meshes[0]}" if self.pipelined else f"mesh {meshes[0]}"
        )

    @property
    def devices(self) -> int:
        """Return the number of devices, those of all parts."""
        return sum(part.mesh.size for part in self.parts)

    @cached_property
    def layout(self) -> Layout:
        """Return the states of all parts, with their redistributions in the order of their tensors."""
        if len(self.parts) == 1:
            return self.parts[0].layout
        layouts = [part.layout for part in self.parts]
        whole = Layout.of(
            self.program,
            {op: states for each in layouts for op, states in each.signatures.items()},
            {name: state for each in layouts for name, state in each.variables.items()},
            {name: state for each in layouts for name, state in each.inputs.items()},
        )
        turn = {tensor: number for number, tensor in enumerate(whole.made)}
        moved = [item for each in layouts for item in each.redistributions]
        moved.sort(key=lambda item: turn[item.tensor])
        return whole.with_redistributions(moved)

    @property
    def signatures(self) -> Mapping[str, NdSignature]:
        """Return the states of the operands of every op."""
        return self.layout.signatures

    @property
    def variables(self) -> Mapping[str, NdSbp]:
        """Return the states of parameters, buffers and optimizer states."""
        return self.layout.variables

    @property
    def redistributions(self) -> Sequence[Redistribution]:
        """Return what readers want in another state."""
        return self.layout.redistributions

    @cached_property
    def inputs(self) -> tuple[InputPlan, ...]:
        """Return the graph's inputs, with the shapes of one micro-batch; with duplex of both halves."""
        turn = {name: number for number, name in enumerate(self.program.inputs)}
        found = [
            InputPlan(name, self.program.tensor[name].shape, state, part)
            for part in self.parts
            for name, state in part.layout.inputs.items()
        ]
        return tuple(sorted(found, key=lambda item: turn[item.name]))

    def in_own_order(self, tasks: StepTasks) -> PlanValue:
        """Return the plan with its stages' tasks in another order, and what a step takes then."""
        usual = tasks == self._in_order(ONE_F_ONE_B)
        other = replace(self, orders=() if usual else tasks.written)
        if any(part.work is None for part in self.parts):
            return other
        busy_s = self.estimate.compute_s + self.estimate.communication_s
        hidden_s = busy_s - other.timeline.step_s
        estimate = replace(self.estimate, overlap_s=max(0.0, hidden_s), idle_s=max(0.0, -hidden_s))
        return replace(other, estimate=estimate)

    @cached_property
    def stage_of(self) -> Mapping[str, int]:
        """Return which part has each op, variable and input."""
        return {
            name: number
            for number, part in enumerate(self.parts)
            for names in (part.layout.signatures, part.layout.variables, part.layout.inputs)
            for name in names
        }

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Return what goes between parts, in the order in which it is made."""
        turn = {tensor: number for number, tensor in enumerate(self.layout.made)}
        found = [item for part in self.parts for item in part.arrivals]
        return tuple(sorted(found, key=lambda item: turn[item.tensor]))

    @property
    def rows(self) -> tuple[ModuleCost, ...]:
        """Return what each module takes, part by part."""
        return tuple(row for part in self.parts for row in part.rows)

    @property
    def pipeline_step(self) -> PipelineStep:
        """Return what the simulation of a step through the parts needs.

        Raises:
            AutoDDLError: the plan was made by hand, without seconds, or has no stages.
        """
        works = [part.work for part in self.parts if part.work is not None]
        if len(works) < len(self.parts):
            raise AutoDDLError("pipeline: no seconds to simulate; plan with autoddl.optimize")
        credits = [part.in_flight for part in self.parts]
        return pipeline_step(
            self.engine, works, self.micro_batches, sent_works(self.engine, self.program, self.transfers),
            credits, self.orders,
        )  # fmt: skip

    @cached_property
    def messages(self) -> tuple[TransferWork, ...]:
        """Return the tensors that go between stages for each micro-batch in a script."""
        return tuple(script_messages(self.program, self.transfers))

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Return which messages these are."""
        return links_between((item.source, item.target) for item in self.messages)

    @property
    def order_name(self) -> str:
        """Return what the order of tasks in a script is called: that of a schedule, or OWN."""
        known = (name for name in (ONE_F_ONE_B, GPIPE) if self._in_order(name) == self.tasks)
        return next(known, OWN)

    @cached_property
    def tasks(self) -> StepTasks:
        """Return what each stage does in a script, in order; an engine with credits has none."""
        if self.orders:
            return tasks_of(self.orders, self.links, self.micro_batches)
        return self._in_order(ONE_F_ONE_B)

    def _in_order(self, schedule: str) -> StepTasks:
        return scheduled(schedule, len(self.parts), self.micro_batches, self.links, rendezvous=True)

    @cached_property
    def timeline(self) -> Timeline:
        """Return the predicted course of a step through its parts; raises as `pipeline_step`."""
        return simulate(self.pipeline_step)

    def check_runnable(self) -> str:
        """Return the engine that runs the plan.

        Raises:
            AutoDDLError: there is none, whatever the graph.
        """
        if self.engine.name is None:
            raise AutoDDLError(
                "plan: made for engine None, where axes cut in any order and no signature is refused; "
                f"plan with an engine, such as {self.engine.title}, to run it"
            )
        if not self.engine.runs_graphs:
            raise AutoDDLError(
                f"plan: made for engine {self.engine.name!r}, {self.engine.title}; write it with "
                "plan.codegen, or plan with engine='oneflow' to apply it"
            )
        if self.compute_stream and self.device != "cuda":
            raise AutoDDLError(
                f"plan: made for the compute stream of CUDA devices, on {self.device!r} there is none; "
                "plan with compute_stream=False"
            )
        if self.micro_batches > 1 and self.device in self.engine.limits.writes_once:
            writing = [op.name for op in self.program.ops if op.phase == "forward" and written(op)]
            if writing:
                raise AutoDDLError(
                    f"plan: op {writing[0]} writes to a variable in each of {self.micro_batches} "
                    f"micro-batches, with which {self.engine.title} aborts on {self.device} devices; "
                    "plan with micro_batches=1 (and recompute='auto' for memory), or write a script of it"
                )
        return self.engine.name

    def check_graph(self, program: Program) -> None:
        """Raise AutoDDLError where `program` is not the one that was planned."""
        if program.device != self.device:
            raise AutoDDLError(
                f"plan: made for device type {self.device!r}, the graph is on {program.device!r}, "
                "whose ops differ; plan again on the cluster, it takes seconds"
            )
        found = program.structure if self.parted else program.fingerprint
        if found != self.fingerprint:
            raise AutoDDLError(
                f"plan: made for graph {self.fingerprint}, this graph is {found} "
                f"({_difference(self, program)}); plan again with autoddl.optimize"
            )


def _difference(plan: PlanValue, program: Program) -> str:
    """Say in a few words how a program differs from the planned one."""
    for item in plan.inputs:
        tensor = program.tensor.get(item.name)
        if tensor is None:
            return f"it has no input {item.name}"
        if tensor.shape != item.shape:
            return f"input {item.name} has shape {tensor.shape}, planned was {item.shape}"
    ops, planned = set(program.op), set(plan.signatures)
    if ops != planned:
        extra, missing = sorted(ops - planned), sorted(planned - ops)
        return f"op {extra[0]} is new" if extra else f"op {missing[0]} is gone"
    return "shapes or attributes differ"
