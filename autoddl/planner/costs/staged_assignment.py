"""An assignment that is cut into stages: what goes between them, what they take and hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from autoddl.perfmodel.oneflow.memory import MemoryEstimate, stage_memory
from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE, PipelineStep, StageWork
from autoddl.perfmodel.pipeline.pipeline_timeline import Timeline, closed_form_s, simulate
from autoddl.perfmodel.pipeline.stage_partition import strict_in_flight
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.step_cost import Price
from autoddl.perfmodel.timeline import MODEL_ERROR
from autoddl.plan.value import Estimate, Transfer, pipeline_step
from autoddl.planner.costs.assigned import Assigned
from autoddl.planner.costs.stage_links import Links
from autoddl.sbp.layout import OUTPUT, Layout, Path, Reader, Redistribution
from autoddl.sbp.program.forward_positions import Positions, stages
from autoddl.sbp.program.live_across import kept_tensors
from autoddl.sbp.rewrites.stage_program import stage_layout
from autoddl.sbp.shards import local_bytes
from autoddl.sbp.state import NdSbp

# Ready ops of different passes take turns. So many parts of a pass come close to it (with one the
# steps of four stages on two cores came out 10 % shorter, experiments.fidelity.pipelines).
PARTS = 8
PASSES, ONCE = ("forward", "backward"), "once"
STREAMS = COMPUTE, BOXING

Memories = dict[tuple[int | None, ...], MemoryEstimate]


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


class Staged:
    """An assignment of the problem of one micro-batch, cut at positions of the forward pass.

    `memories` are those of stages of other cuts of the same assignment, for as many stages.
    """

    def __init__(
        self, assigned: Assigned, found: Positions, bounds: Sequence[int], micro_batches: int,
        links: Links, *, recomputed: Sequence[int] = (), memories: Memories | None = None,
    ) -> None:  # fmt: skip
        self.assigned, self.problem = assigned, assigned.problem
        self.program, self.mesh = assigned.problem.program, assigned.problem.mesh
        self.links, self.bounds = links, tuple(bounds)
        self.stages, self.micro_batches = len(bounds) + 1, micro_batches
        self.stage_of = stages(found, bounds)
        self.recomputed = tuple(recomputed)
        self.memories: Memories = {} if memories is None else memories
        self.made = assigned.layout.made

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Return what goes between stages."""
        return self._moves[0]

    @property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """Return the redistributions inside stages."""
        return self._moves[1]

    @cached_property
    def layout(self) -> Layout:
        """Return the states of all tensors, with the redistributions inside stages."""
        return self.assigned.layout.with_redistributions(self.redistributions)

    @cached_property
    def _moves(self) -> tuple[tuple[Transfer, ...], tuple[Redistribution, ...]]:
        found: dict[str, list[Redistribution]] = {}
        for item in self.assigned.layout.redistributions:
            found.setdefault(item.tensor, []).append(item)
        transfers: list[Transfer] = []
        redistributions: list[Redistribution] = []
        for tensor in self.made:
            items = found.get(tensor, [])
            wanted = {reader: item.path for item in items for reader in item.readers}
            by_stage = self._readers(tensor, wanted)
            if by_stage.keys() == {self.where(tensor)}:
                redistributions += items
                continue
            for stage, readers in by_stage.items():
                known = {reader: wanted.get(reader, ()) for reader in readers}
                if stage != self.where(tensor):
                    sent = self._sent(tensor, tuple(known.values()))
                    transfers.append(self._transfer(tensor, stage, sent))
                    known = {reader: path[len(sent) :] for reader, path in known.items()}
                redistributions += _grouped(tensor, known)
        return tuple(transfers), tuple(redistributions)

    def _transfer(self, tensor: str, target: int, path: Path) -> Transfer:
        source, state = self.where(tensor), path[-1] if path else self.made[tensor]
        seconds = self.links.seconds(source, target, self.local(tensor, state))
        readers = self.program.consumers.get(tensor, ())
        once = bool(readers) and all(op.phase == "optimizer" for op, _ in readers)
        return Transfer(tensor, source, target, path, None if once else seconds)

    def _readers(self, tensor: str, wanted: Mapping[Reader, Path]) -> dict[int, list[Reader]]:
        """Return who reads a tensor, by stage; outputs stay in the stage that makes them."""
        found: dict[int, list[Reader]] = {}
        for op, operand in self.program.consumers.get(tensor, ()):
            found.setdefault(self.stage_of[op.name], []).append((op.name, operand))
        found.setdefault(self.where(tensor), []).extend(r for r in wanted if r[0] == OUTPUT)
        return found

    def maker(self, tensor: str) -> str:
        """Return the op that makes a tensor; a variable or input, which none makes, stands for itself."""
        producer = self.program.producer.get(tensor)
        return tensor if producer is None else producer.name

    def where(self, tensor: str) -> int:
        """Return the stage that makes or keeps a tensor."""
        return self.stage_of[self.maker(tensor)]

    def _sent(self, tensor: str, paths: Sequence[Path]) -> Path:
        """Return the part of all readers' paths behind which the fewest bytes have to be sent."""
        common = 0
        while all(len(p) > common and p[common] == paths[0][common] for p in paths):
            common += 1
        sizes = [
            (any(s.is_partial for s in state), self.local(tensor, state), length)
            for length in range(common + 1)
            for state in ((self.made[tensor], *paths[0])[length],)
        ]
        return paths[0][: min(sizes)[2]]

    def local(self, tensor: str, state: NdSbp) -> int:
        """Return the bytes of a tensor in a state on each device."""
        return local_bytes(self.program.tensor[tensor], state, self.mesh.shape)

    def arrived(self, item: Transfer) -> NdSbp:
        """Return the state in which a tensor arrives."""
        return item.path[-1] if item.path else self.made[item.tensor]

    def stage(self, item: Redistribution) -> int:
        """Return the stage whose ops read what a redistribution makes."""
        op = item.readers[0][0]
        return self.where(item.tensor) if op == OUTPUT else self.stage_of[op]

    @cached_property
    def _start(self) -> dict[tuple[str, int], NdSbp]:
        """Return the state of a tensor at the begin of its redistributions in a stage."""
        found = {(name, self.where(name)): state for name, state in self.made.items()}
        found |= {(t.tensor, t.target): self.arrived(t) for t in self.transfers}
        return found

    @cached_property
    def step(self) -> PipelineStep:
        """Return what the simulation of a step needs; OneFlow's schedule with our buffers."""
        works = [self._work(stage) for stage in range(self.stages)]
        return pipeline_step(works, self.micro_batches, self.transfers, self.in_flight)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Return by stage of how many micro-batches forward results are kept."""
        return strict_in_flight(self.stages, self.micro_batches)

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
        step_s, known = self.timeline.step_s, self.assigned.prediction.cost
        sums = [[0.0, 0.0] for _ in range(self.stages)]
        for item in self.spent:
            sums[item.stage][STREAMS.index(item.stream)] += self.times(item.phase) * item.seconds
        compute_s, communication_s = max(sums, key=sum)
        hidden_s = compute_s + communication_s - step_s
        hidden_s *= abs(hidden_s) > 1e-9 * step_s  # else it is rounding
        share = known.uncertainty_s / known.step_s if known.step_s else 0.0
        return Estimate(
            name, compute_s, communication_s, self.memory_bytes,
            uncertainty_s=step_s * math.hypot(MODEL_ERROR, share),
            overlap_s=max(0.0, hidden_s), idle_s=max(0.0, -hidden_s),
        )  # fmt: skip

    @cached_property
    def memory(self) -> tuple[MemoryEstimate, ...]:
        """Return by stage the memory of the device that needs most."""
        found = []
        for stage, ends in enumerate(pairwise((0, *self.bounds, None))):
            key = (*ends, self.in_flight[stage], stage in self.recomputed)
            if key not in self.memories:
                self.memories[key] = self.stage_memory(stage)
            found.append(self.memories[key])
        return tuple(found)

    @property
    def memory_bytes(self) -> int:
        """Return the memory of the device that needs most."""
        return max(memory.total for memory in self.memory)

    def stage_memory(self, stage: int) -> MemoryEstimate:
        """Return the memory of one stage."""
        arrivals = {t.tensor: self.arrived(t) for t in self.transfers if t.target == stage}
        return stage_memory(
            self.mesh.shape,
            stage_layout(self.layout, self.stage_of, stage, arrivals),
            micro_batches=self.micro_batches,
            in_flight=self.in_flight[stage],
            recompute=stage in self.recomputed,
        )

    def sizes(self) -> Iterator[tuple[str, int, str]]:
        """Yield what devices hold, by maker: variables, gradients and, by micro-batch, activations.

        Inputs are among the last.
        """
        gradients = {p.gradient for p in self.program.parameters}
        for name in self.layout.variables:
            yield name, self.local(name, self.made[name]), "variable"
        for name in (*self.layout.inputs, *kept_tensors(self.program)):
            if name in self.made:
                kind = "gradient" if name in gradients else "activation"
                yield self.maker(name), self.local(name, self.made[name]), kind

    @property
    def spent(self) -> list[Spent]:
        """Return all that takes time in a step, but transfers."""
        return self.planned + self.added

    @cached_property
    def planned(self) -> list[Spent]:
        """Return what ops and boxings take; a boxing is in the pass of its first reader."""
        prices = self.problem.setting.prices
        found = [
            Spent(self.stage_of[op.name], self._phase(op.name), COMPUTE, (op.name,), price.seconds)
            for op, price in zip(self.program.ops, prices.ops(self.layout).rows(), strict=True)
        ]
        for item in self.redistributions:
            stage, readers = self.stage(item), tuple(op for op, _ in item.readers)
            path = prices.path(item.tensor, self._start[item.tensor, stage], item.path)
            found += self._boxings(stage, readers, path)
        for sent in self.transfers:
            path = prices.path(sent.tensor, self.made[sent.tensor], sent.path)
            found += self._boxings(sent.source, (self.maker(sent.tensor),), path)
        again = [s for s in found if s.phase == "forward" and s.stage in self.recomputed]
        return found + [spent._replace(phase="backward") for spent in again]

    def _boxings(self, stage: int, of: tuple[str, ...], path: Sequence[Price]) -> Iterator[Spent]:
        phases = {self._phase(name) for name in of}
        phase = next((each for each in PASSES if each in phases), ONCE)
        for price in path:
            axes = price.boxing.axes if price.boxing is not None else ()
            free = self.problem.profile.hidden(self.mesh.axes[axes[0]].level if axes else "")
            yield Spent(stage, phase, BOXING, of, price.seconds, free)

    def _phase(self, name: str) -> str:
        """Return when an op runs; variables and inputs are there before the forward pass."""
        if name == OUTPUT:
            return ONCE
        phase = self.program.op[name].phase if name in self.program.op else "forward"
        return ONCE if phase == "optimizer" else phase

    @cached_property
    def added(self) -> list[Spent]:
        """Return what the engine adds to the program: copies into buffers, sums of gradients."""
        found = []
        for copy in self.copies():
            own = copy.of[0] in self.program.op and self.stage_of[copy.of[0]] == copy.stage
            again = own and copy.stage in self.recomputed  # else it is made again, not kept
            if self.in_flight[copy.stage] > 1 and not again:
                found.append(copy)
        if self.micro_batches > 1:
            gradients = (p.gradient for p in self.program.parameters if p.gradient in self.made)
            for name in filter(None, gradients):
                size = 3 * self.local(name, self.made[name])
                found.append(self._moved(self.where(name), "backward", name, "add_n", size))
        return found

    def copies(self) -> Iterator[Spent]:
        """Yield the copies of forward results that keep those of several micro-batches."""
        for (tensor, stage), state in self._start.items():
            producer = self.program.producer.get(tensor)
            forward = producer.phase == "forward" if producer else tensor in self.program.inputs
            readers = self.program.consumers.get(tensor, ())
            here = (op for op, _ in readers if self.stage_of[op.name] == stage)
            if forward and any(op.phase == "backward" for op in here):
                size = 2 * self.local(tensor, state)
                yield self._moved(stage, "forward", tensor, "identity", size)

    def _moved(self, stage: int, phase: str, tensor: str, op_type: str, moved: int) -> Spent:
        """Return what an op takes that moves so many bytes."""
        family = {"identity": "memory", "add_n": "elementwise"}[op_type]
        work = OpWork(op_type, family, "float32", 0.0, moved)
        seconds = op_s(self.problem.profile, work)
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


def _grouped(tensor: str, paths: Mapping[Reader, Path]) -> Iterator[Redistribution]:
    """Yield one redistribution for all readers that want the same state."""
    readers: dict[Path, list[Reader]] = {}
    for reader, path in paths.items():
        if path:
            readers.setdefault(path, []).append(reader)
    for path, group in readers.items():
        yield Redistribution(tensor, path, tuple(group))
