"""Assignments that are cut into stages: what goes between them, what they take and hold."""

from __future__ import annotations

import copy as copying
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from autoddl.engine.model import EngineModel, MemoryEstimate
from autoddl.perfmodel.pipeline.pipeline_step import (
    BOXING,
    COMPUTE,
    PipelineStep,
    StageWork,
    TransferWork,
)
from autoddl.perfmodel.pipeline.pipeline_timeline import Timeline, closed_form_s, simulate
from autoddl.perfmodel.pipeline.schedules import CREDITS, strict_in_flight
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.timeline import MODEL_ERROR
from autoddl.plan.parts import Estimate
from autoddl.plan.stage_messages import pipeline_step, sent_works
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.stage_moves import StageMoves, StagePart
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.layout import OUTPUT, Layout, Path
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program.forward_positions import Positions, stages
from autoddl.sbp.program.live_across import kept_tensors
from autoddl.sbp.program.ops_and_tensors import copy_of
from autoddl.sbp.rewrites.stage_program import StageCrossing, stage_layout
from autoddl.sbp.rewrites.tied_sums import accumulated
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp

# Ready ops of different passes take turns. So many parts of a pass come close to it (with one the
# steps of four stages on two cores came out 10 % shorter, experiments.fidelity.pipelines).
PARTS = 8
PASSES, ONCE = ("forward", "backward"), "once"
STREAMS = COMPUTE, BOXING

Memories = dict[tuple[Assigned | int | None, ...], MemoryEstimate]


class Spent(NamedTuple):
    """Seconds of a stage: in the "forward" or "backward" pass of a micro-batch, or "once" per step.

    `of` are the ops, variables or inputs for which they are spent; their module is that of the first
    one. Of a boxing the share `free` leaves the device to ops.
    """

    stage: int
    phase: str
    stream: str
    of: tuple[str, ...]
    seconds: float
    free: float = 0.0


class Staged(StageMoves):
    """Assignments of the problem of one micro-batch, cut at positions of the forward pass.

    Part number n follows its assignment from one of the `bounds` to the next. `memories` are those of
    stages of other cuts of the same assignments.
    """

    def __init__(
        self, parts: Sequence[StagePart], found: Positions, bounds: Sequence[int], micro_batches: int,
        links: Links, *, recomputed: Sequence[int] = (), in_flight: Sequence[int] | None = None,
        memories: Memories | None = None,
    ) -> None:  # fmt: skip
        super().__init__(parts, stages(found, bounds), links, several=micro_batches > 1)
        self.bounds, self.stages, self.micro_batches = tuple(bounds), len(parts), micro_batches
        self.recomputed = tuple(recomputed)
        strict = strict_in_flight(self.stages, micro_batches)
        self.in_flight = strict if in_flight is None else tuple(in_flight)
        self.orders: tuple[str, ...] = ()
        self.memories: Memories = {} if memories is None else memories

    @classmethod
    def equal(
        cls, assigned: Assigned, found: Positions, bounds: Sequence[int], micro_batches: int,
        links: Links, **more: Any,
    ) -> Staged:  # fmt: skip
        """Return stages that follow one assignment, on devices one behind the other."""
        size = assigned.problem.mesh.size
        parts = [
            StagePart(assigned, tuple(range(n * size, (n + 1) * size)))
            for n in range(len(bounds) + 1)
        ]
        return cls(parts, found, bounds, micro_batches, links, **more)

    def with_in_flight(self, in_flight: Sequence[int]) -> Staged:
        """Return the same stages with other numbers of micro-batches in flight.

        What does not depend on these is computed once for both.
        """
        other = copying.copy(self)
        for name in ("added", "_busy", "step", "timeline", "memory", "flying"):
            other.__dict__.pop(name, None)
        other.in_flight = tuple(in_flight)
        return other

    def with_orders(self, orders: tuple[str, ...], in_flight: Sequence[int]) -> Staged:
        """Return the same stages with their tasks in other orders, which keep so much in flight."""
        other = self.with_in_flight(in_flight)
        other.orders = orders
        return other

    def with_nothing_again(self) -> Staged:
        """Return the same stages, none of which makes its forward results again."""
        other = self.with_in_flight(self.in_flight)
        other.__dict__.pop("planned", None)
        other.recomputed = ()
        return other

    @property
    def pipelined(self) -> bool:
        """Tell whether there are several stages or micro-batches."""
        return self.stages > 1 or self.micro_batches > 1

    @property
    def meshes(self) -> list[Mesh]:
        """Return the unlike meshes of the stages."""
        return list(dict.fromkeys(part.assigned.problem.mesh for part in self.parts))

    @property
    def engine(self) -> EngineModel:
        """Return the engine that the stages are planned for."""
        return self.assigned(0).problem.setting.engine

    @cached_property
    def signatures(self) -> Mapping[str, NdSignature]:
        """Return the states of the operands of every op, in its stage."""
        held = [self.layout(stage).signatures for stage in range(self.stages)]
        return {op.name: held[self.stage_of[op.name]][op.name] for op in self.program.ops}

    def stage_layout(self, stage: int) -> Layout:
        """Return what is made and kept in one stage."""
        whole, stage_of = self.layout(stage), self.stage_of
        return Layout.of(
            self.program,
            {op: states for op, states in whole.signatures.items() if stage_of[op] == stage},
            {name: state for name, state in whole.variables.items() if stage_of[name] == stage},
            {name: state for name, state in whole.inputs.items() if stage_of[name] == stage},
            tuple(item for item in self.redistributions if self.stage(item) == stage),
        )

    @cached_property
    def _start(self) -> dict[tuple[str, int], NdSbp]:
        """Return the state of a tensor at the begin of its redistributions in a stage."""
        found = {(name, self.where(name)): state for name, state in self.made.items()}
        found |= {(t.tensor, t.target): self.arrived(t) for t in self.transfers}
        return found

    @cached_property
    def step(self) -> PipelineStep:
        """Return what the simulation of a step needs."""
        works = [self._work(stage) for stage in range(self.stages)]
        return pipeline_step(
            self.engine, works, self.micro_batches, self.sent_works, self.in_flight, self.orders
        )

    @cached_property
    def sent_works(self) -> tuple[TransferWork, ...]:
        """Return what goes between stages for each micro-batch."""
        return sent_works(self.engine, self.program, self.transfers)

    @cached_property
    def flying(self) -> tuple[int, ...]:
        """Return by stage how many micro-batches have to be in flight so that none waits for links.

        So many are on the way from a stage's forward to its backward pass while the slowest stage does
        one after the other: with transfers of 13 ms to and from a last stage, both of 87 ms, these are
        (87 + 87 + 2·13) / 87, rounded up to 3, where strict 1F1B has 2.
        """
        strict = strict_in_flight(self.stages, self.micro_batches)
        if self.engine.schedule != CREDITS:
            return strict
        stage_s = [sum(s for _, s in work.forward + work.backward) for work in self.step.stages]
        sent_s = [0.0] * self.stages  # of all cuts behind a stage
        for sent in self.step.transfers:
            for stage in range(min(sent.source, sent.target), max(sent.source, sent.target)):
                sent_s[stage] += sent.seconds
        ways = [sum(stage_s[n:]) + sum(sent_s[n:]) for n in range(self.stages)]
        slowest = max(max(stage_s), 1e-12)
        wanted = (math.ceil(way / slowest) for way in ways)
        return tuple(
            min(self.micro_batches, max(pair)) for pair in zip(strict, wanted, strict=True)
        )

    @cached_property
    def timeline(self) -> Timeline:
        """Return when everything of a step runs."""
        return simulate(self.step)

    @cached_property
    def bounded_s(self) -> float:
        """Return the seconds of a step in which nothing overlaps: what bounds are compared with."""
        stage_s, once_s = [0.0] * self.stages, [0.0] * self.stages
        for item in self.planned:
            (once_s if item.phase == ONCE else stage_s)[item.stage] += item.seconds
        sent_s = [transfer.seconds for transfer in self.step.transfers]
        return closed_form_s(stage_s, self.micro_batches, transfer_s=sent_s, once_s=once_s)

    def estimate(self, name: str) -> Estimate:
        """Return what a step takes on the busiest stage's devices, and what these wait."""
        step_s = self.timeline.step_s
        sums = [[0.0, 0.0] for _ in range(self.stages)]
        for item in self.spent:
            sums[item.stage][STREAMS.index(item.stream)] += self.times(item.phase) * item.seconds
        compute_s, communication_s = max(sums, key=sum)
        hidden_s = compute_s + communication_s - step_s
        hidden_s *= abs(hidden_s) > 1e-9 * step_s  # else it is rounding
        costs = [each.prediction.cost for each in dict.fromkeys(p.assigned for p in self.parts)]
        share = max(cost.uncertainty_s / cost.step_s if cost.step_s else 0.0 for cost in costs)
        memory = max(self.memory, key=lambda each: each.counted)
        return Estimate(
            name, compute_s, communication_s, memory.total, room=memory.room,
            uncertainty_s=step_s * math.hypot(MODEL_ERROR, share),
            overlap_s=max(0.0, hidden_s), idle_s=max(0.0, -hidden_s),
        )  # fmt: skip

    @cached_property
    def joined(self) -> bool:
        """Tell whether the engine lowers all stages at once."""
        sizes = [part.assigned.problem.mesh.size for part in self.parts]
        return self.engine.joins_stages(sizes, self.program)

    @cached_property
    def memory(self) -> tuple[MemoryEstimate, ...]:
        """Return by stage the memory of the device that has least to spare."""
        found = []
        for stage, ends in enumerate(pairwise((0, *self.bounds, None))):
            key = (
                self.assigned(stage), *ends, self.in_flight[stage], stage in self.recomputed,
                self.joined,
            )  # fmt: skip
            if key not in self.memories:
                self.memories[key] = self.stage_memory(stage)
            found.append(self.memories[key])
        return tuple(found)

    @property
    def memory_bytes(self) -> int:
        """Return that of all stages, as it counts against the memory of the smallest device."""
        return max(memory.counted for memory in self.memory)

    def room_of(self, stage: Profile) -> float:
        """Return how many times as much memory as the smallest device those of a stage have."""
        known, kinds = self.links.profile, self.links.cluster.kinds
        memory = [known.part([kind]).memory_bytes for kind in dict.fromkeys(kinds)]
        return stage.memory_bytes / min(memory) if memory else 1.0

    def stage_memory(self, stage: int) -> MemoryEstimate:
        """Return the memory of one stage, on the device that has least to spare."""
        setting, run = self.assigned(stage).problem.setting, self.stage_run(stage)
        room, found = self.room_of(setting.profile), []
        for place in setting.places:
            memory = self.engine.stage_memory(
                place.cuts,
                run,
                micro_batches=self.micro_batches,
                in_flight=self.in_flight[stage],
                recompute=stage in self.recomputed,
                joined=self.joined,
            )
            found.append(replace(memory, room=room * place.room))
        return max(found, key=lambda memory: memory.counted)

    def stage_run(self, stage: int) -> Layout:
        """Return what one stage runs, as a program of its own in which arrivals are made by ops."""
        here = [item for item in self.redistributions if self.stage(item) == stage]
        layout = self.layout(stage).with_redistributions(here)
        entering, leaving = [], []
        for item in self.transfers:
            sent, arrived = item.sent(self.made[item.tensor]), self.arrived(item)
            before = self.local(item.tensor, sent, item.source)
            behind = self.local(item.tensor, arrived, item.target)
            if item.target == stage:
                entering.append(StageCrossing(item.tensor, arrived, behind > before))
            if item.source == stage:
                leaving.append(StageCrossing(item.tensor, sent, before > behind, item.path))
        return stage_layout(layout, self.stage_of, stage, entering, leaving)

    def sizes(self) -> Iterator[tuple[str, int, str]]:
        """Yield what devices hold, by maker: variables, gradients and, by micro-batch, activations.

        Inputs are among the last.
        """
        gradients = {p.gradient for p in self.program.parameters}
        layout = self.layout(0)
        for name in layout.variables:
            yield name, self._size(name), "variable"
        for name in (*layout.inputs, *kept_tensors(self.program)):
            if name in self.made:
                kind = "gradient" if name in gradients else "activation"
                yield self.maker(name), self._size(name), kind

    def _size(self, tensor: str) -> int:
        """Return the bytes of a tensor on each device where it is made."""
        return self.local(tensor, self.made[tensor], self.where(tensor))

    @property
    def spent(self) -> list[Spent]:
        """Return all that takes time in a step, but transfers."""
        return self.planned + self.added

    @cached_property
    def planned(self) -> list[Spent]:
        """Return what ops and boxings take; a boxing is in the pass of its first reader."""
        seconds = {
            each: dict(zip(each.problem.program.op, prices.ops(each.layout).rows(), strict=True))
            for each in self.layouts
            for prices in (each.problem.setting.prices,)
        }
        found = [
            Spent(
                stage,
                self._phase(op.name),
                COMPUTE,
                (op.name,),
                seconds[self.assigned(stage)][copy_of(op.name)].seconds,
            )
            for op in self.program.ops
            for stage in (self.stage_of[op.name],)
        ]
        for item in self.redistributions:
            stage, readers = self.stage(item), tuple(op for op, _ in item.readers)
            found += self._boxings(
                stage, readers, item.tensor, self._start[item.tensor, stage], item.path
            )
        for sent in self.transfers:
            of = (self.maker(sent.tensor),)
            begun = self._boxings(sent.source, of, sent.tensor, self.made[sent.tensor], sent.path)
            if sent.seconds is None:
                begun = (spent._replace(phase=ONCE) for spent in begun)
                found.append(Spent(sent.target, ONCE, BOXING, of, self.sent_s(sent)))
            found += begun
        again = [s for s in found if s.phase == "forward" and s.stage in self.recomputed]
        return found + [spent._replace(phase="backward") for spent in again]

    def _boxings(
        self, stage: int, of: tuple[str, ...], tensor: str, start: NdSbp, path: Path
    ) -> Iterator[Spent]:
        phases = {self._phase(name) for name in of}
        phase = next((each for each in PASSES if each in phases), ONCE)
        problem = self.assigned(stage).problem
        prices = problem.setting.prices
        for price in prices.path(copy_of(tensor), start, path):
            free = prices.hidden(price)
            free *= not problem.compute_stream  # there nothing overlaps
            yield Spent(stage, phase, BOXING, of, price.seconds, free)

    def _phase(self, name: str) -> str:
        """Return when an op runs; variables and inputs are there before the forward pass."""
        if name == OUTPUT:
            return ONCE
        phase = self.program.op[name].phase if name in self.program.op else "forward"
        return ONCE if phase == "optimizer" else phase

    @cached_property
    def added(self) -> list[Spent]:
        """Return what the engine adds: copies into buffers that credits keep, sums of gradients."""
        found, buffers = [], self.engine.schedule == CREDITS and max(self.in_flight) > 1
        for copy in self.copies() if buffers else ():
            own = copy.of[0] in self.program.op and self.stage_of[copy.of[0]] == copy.stage
            again = own and copy.stage in self.recomputed  # else it is made again, not kept
            if self.in_flight[copy.stage] > 1 and not again:
                found.append(copy)
        if self.micro_batches > 1:
            for name in filter(self.made.__contains__, accumulated(self.program)):
                size = 3 * self._size(name)
                found.append(self._moved(self.where(name), "backward", name, "add_n", size))
        return found

    def copies(self) -> Iterator[Spent]:
        """Yield the copies of forward results that keep those of several micro-batches."""
        again: dict[str, set[int]] = {}  # by tensor the stages whose backward passes read it
        for op in self.program.ops:
            if op.phase == "backward":
                for _, tensor in op.inputs:
                    again.setdefault(tensor, set()).add(self.stage_of[op.name])
        for (tensor, stage), state in self._start.items():
            if stage not in again.get(tensor, ()):
                continue
            producer = self.program.producer.get(tensor)
            if producer.phase == "forward" if producer else tensor in self.program.inputs:
                size = 2 * self.local(tensor, state, stage)
                yield self._moved(stage, "forward", tensor, "identity", size)

    def _moved(self, stage: int, phase: str, tensor: str, op_type: str, moved: int) -> Spent:
        """Return what an op takes that moves so many bytes."""
        family = {"identity": "memory", "add_n": "elementwise"}[op_type]
        work = OpWork(op_type, family, "float32", 0.0, moved)
        seconds = op_s(self.assigned(stage).problem.profile, work)
        return Spent(stage, phase, COMPUTE, (self.maker(tensor),), seconds)

    def times(self, phase: str) -> int:
        """Return how often something comes in a step."""
        return 1 if phase == ONCE else self.micro_batches

    @cached_property
    def _busy(self) -> Mapping[tuple[int, str, str], float]:
        """Return the seconds by stage, phase and stream."""
        found: dict[tuple[int, str, str], float] = defaultdict(float)
        for item in self.spent:
            found[item.stage, item.phase, COMPUTE] += (1 - item.free) * item.seconds
            found[item.stage, item.phase, BOXING] += item.free * item.seconds
        return found

    def _work(self, stage: int) -> StageWork:
        """Return what a stage does, in parts that take turns with those of other passes, as ops do."""
        found = self._busy
        forward, backward = (
            tuple((k, s / PARTS) for _ in range(PARTS) for k in STREAMS
                  if (s := found[stage, phase, k]) or k == COMPUTE)
            for phase in PASSES
        )  # fmt: skip
        return StageWork(forward, backward, tuple((k, found[stage, ONCE, k]) for k in STREAMS))
