"""An assignment that is cut into stages: what goes between them, what they take and hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from autoddl.make_plan import Assigned
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.compute import op_s
from autoddl.perfmodel.memory import Layout, MemoryEstimate, kept_tensors, local_bytes
from autoddl.perfmodel.pipeline import Timeline, closed_form_s, simulate
from autoddl.perfmodel.pipeline_step import BOXING, COMPUTE, PipelineStep, StageWork, TransferWork
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.stage_memory import part, stage_memory
from autoddl.perfmodel.step import Price
from autoddl.plan import OUTPUT, Pipeline, Redistribution, Transfer
from autoddl.sbp.boxing import ALL_GATHER
from autoddl.sbp.mesh import Cluster
from autoddl.sbp.positions import Positions, stages
from autoddl.sbp.state import NdSbp
from autoddl.search.stages import strict_in_flight

# Ready ops of different passes take turns. So many parts of a pass come close to it (with one the
# steps of four stages on two cores came out 10 % shorter, experiments.fidelity.pipelines).
PARTS = 8

Reader = tuple[str, str]
Path = tuple[NdSbp, ...]
Memories = dict[tuple[int | None, ...], MemoryEstimate]


@dataclass(frozen=True)
class Links:
    """The links between stages, which lie one behind the other on the devices of a cluster."""

    profile: Profile
    cluster: Cluster
    stage_size: int

    def seconds(self, source: int, target: int, size_bytes: int) -> float:
        """Return the seconds in which every device of a stage sends so many bytes to another stage."""
        if (source, target) not in self._levels:
            self._levels[source, target] = self._level(source, target)
        level, groups = self._levels[source, target]
        if self._measured:
            return self.profile.collective_s(SEND_RECEIVE, level, 2, size_bytes, groups=groups)
        return self.profile.collective_s(ALL_GATHER, level, 2, 2 * size_bytes, groups=groups)

    @cached_property
    def _levels(self) -> dict[tuple[int, int], tuple[str, int]]:
        return {}

    @cached_property
    def _measured(self) -> bool:
        """Tell whether the profile knows send/receive; an all-gather of two sends as much else."""
        return any(link.collective == SEND_RECEIVE for link in self.profile.links)

    def _level(self, source: int, target: int) -> tuple[str, int]:
        """Return the outermost level that is crossed, and how many devices of a unit cross it."""
        unit = self.cluster.size
        for level in self.cluster.levels:
            unit //= level.size
            first, second = (stage * self.stage_size for stage in (source, target))
            devices = range(self.stage_size)
            if any((first + d) // unit != (second + d) // unit for d in devices):
                return level.name, min(unit, self.stage_size)
        raise AssertionError("stages on the same devices")


class Staged:
    """An assignment of the problem of one micro-batch, cut at positions of the forward pass.

    `memories` are those of stages of other cuts of the same assignment, for as many stages.
    """

    def __init__(
        self, assigned: Assigned, found: Positions, bounds: Sequence[int], micro_batches: int,
        links: Links, *, recomputed: Sequence[int] = (), memories: Memories | None = None,
    ) -> None:  # fmt: skip
        self.assigned, self.program = assigned, assigned.problem.program
        self.mesh, self.links, self.bounds = assigned.problem.mesh, links, tuple(bounds)
        self.stages, self.micro_batches = len(bounds) + 1, micro_batches
        self.stage_of = stages(found, bounds)
        self.recomputed = tuple(recomputed)
        self.memories: Memories = {} if memories is None else memories
        self.made = assigned.layout.made(self.program)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Return the stages as plans have them."""
        return Pipeline(
            self.stages, self.micro_batches, self.stage_of, self.transfers, self.recomputed,
            tuple(memory.total for memory in self.memory), self.step,
        )  # fmt: skip

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
        return replace(self.assigned.layout, redistributions=self.redistributions)

    @cached_property
    def _moves(self) -> tuple[tuple[Transfer, ...], tuple[Redistribution, ...]]:
        paths: dict[str, dict[Reader, Path]] = {}
        for item in self.assigned.redistributions:
            paths.setdefault(item.tensor, {}).update(dict.fromkeys(item.readers, item.path))
        transfers: list[Transfer] = []
        redistributions: list[Redistribution] = []
        for tensor in self.made:
            wanted = paths.get(tensor, {})
            for stage, readers in self._readers(tensor, wanted).items():
                known = {reader: wanted.get(reader, ()) for reader in readers}
                if stage != self.where(tensor):
                    sent = self._sent(tensor, tuple(known.values()))
                    transfers.append(Transfer(tensor, stage, sent))
                    known = {reader: path[len(sent) :] for reader, path in known.items()}
                redistributions += _grouped(tensor, known)
        return tuple(transfers), tuple(redistributions)

    def _readers(self, tensor: str, wanted: Mapping[Reader, Path]) -> dict[int, list[Reader]]:
        """Return who reads a tensor, by stage; outputs stay in the stage that makes them."""
        found: dict[int, list[Reader]] = {}
        for op, operand in self.program.consumers.get(tensor, ()):
            found.setdefault(self.stage_of[op.name], []).append((op.name, operand))
        found.setdefault(self.where(tensor), []).extend(r for r in wanted if r[0] == OUTPUT)
        return found

    def where(self, tensor: str) -> int:
        """Return the stage that makes or keeps a tensor."""
        producer = self.program.producer.get(tensor)
        return self.stage_of[tensor if producer is None else producer.name]

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

    @cached_property
    def _start(self) -> dict[tuple[str, int], NdSbp]:
        """Return the state of a tensor at the begin of its redistributions in a stage."""
        found = {(name, self.where(name)): state for name, state in self.made.items()}
        found |= {(t.tensor, t.target): self.arrived(t) for t in self.transfers}
        return found

    @cached_property
    def step(self) -> PipelineStep:
        """Return what the simulation of a step needs; OneFlow's schedule with our buffers."""
        transfers = tuple(
            TransferWork(source, t.target, seconds, t.tensor)
            for t in self.transfers
            for source in (self.where(t.tensor),)
            for seconds in (
                self.links.seconds(source, t.target, self.local(t.tensor, self.arrived(t))),
            )
            if not self._once(t.tensor)
        )
        return PipelineStep(
            tuple(self._work(stage) for stage in range(self.stages)),
            self.micro_batches,
            transfers,
            schedule="oneflow",
            credits=self.in_flight,
        )

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
        totals = self._totals
        return closed_form_s(
            [sum(t[p][s] for p in ("forward", "backward") for s in t[p]) for t in totals],
            self.micro_batches,
            transfer_s=[t.seconds for t in self.step.transfers],
            once_s=[sum(t["once"].values()) for t in totals],
        )

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
    def needed_bytes(self) -> int:
        """Return the memory of the device that needs most."""
        return max(memory.total for memory in self.memory)

    def sizes(self) -> Iterator[tuple[str, int, bool]]:
        """Yield what devices hold: tensors, bytes, and whether it is for each micro-batch in flight."""
        sums = 2 if self.micro_batches > 1 else 1
        gradients = {p.gradient for p in self.program.parameters}
        for name in self.layout.variables:
            yield name, self.local(name, self.made[name]), False
        for name in kept_tensors(self.program):
            if name in self.made:
                size = self.local(name, self.made[name])
                yield name, size * sums if name in gradients else size, name not in gradients

    def stage_memory(self, stage: int) -> MemoryEstimate:
        """Return the memory of one stage."""
        arrivals = {t.tensor: self.arrived(t) for t in self.transfers if t.target == stage}
        return stage_memory(
            part(self.program, self.layout, self.stage_of, stage, arrivals),
            self.mesh.shape,
            micro_batches=self.micro_batches,
            in_flight=self.in_flight[stage],
            recompute=stage in self.recomputed,
        )

    def _once(self, tensor: str) -> bool:
        """Tell whether a tensor is read once per step: a gradient that only updates read."""
        readers = self.program.consumers.get(tensor, ())
        return bool(readers) and all(op.phase == "optimizer" for op, _ in readers)

    @cached_property
    def prices(self) -> dict[str, list[tuple[int, str, Price]]]:
        """Return (stage, phase, price) of every op and boxing by "compute" and "boxing".

        Phases are "forward", "backward" and "once"; a boxing is in that of its first reader.
        """
        known = self.assigned.problem.prices
        compute = [
            (self.stage_of[op.name], "once" if op.phase == "optimizer" else op.phase, price)
            for op, price in zip(self.program.ops, known.ops(self.layout).rows(), strict=True)
        ]
        boxings = []
        for item in self.redistributions:
            stage, phase = self._stage(item), self._phase(item.readers)
            boxings += [(stage, phase, price) for price in self._path(item)]
        for transfer in self.transfers:
            stage = self.where(transfer.tensor)
            producer = self.program.producer.get(transfer.tensor)
            phase = producer.phase if producer else "forward"
            path = known.path(transfer.tensor, self.made[transfer.tensor], transfer.path)
            boxings += [(stage, phase, price) for price in path]
        return {COMPUTE: compute, BOXING: boxings}

    def boxings(self) -> Iterator[tuple[Redistribution, str, float]]:
        """Yield the redistributions inside stages with their phases and seconds."""
        for item in self.redistributions:
            seconds = sum(price.seconds for price in self._path(item))
            yield item, self._phase(item.readers), seconds

    def _path(self, item: Redistribution) -> Sequence[Price]:
        start = self._start[item.tensor, self._stage(item)]
        return self.assigned.problem.prices.path(item.tensor, start, item.path)

    def _stage(self, item: Redistribution) -> int:
        op = item.readers[0][0]
        return self.where(item.tensor) if op == OUTPUT else self.stage_of[op]

    def _phase(self, readers: Sequence[Reader]) -> str:
        phases = {self.program.op[op].phase if op != OUTPUT else "once" for op, _ in readers}
        for phase in ("forward", "backward"):
            if phase in phases:
                return phase
        return "once"

    def _work(self, stage: int) -> StageWork:
        """Return what a stage does, in parts that take turns with those of other passes, as ops do."""
        totals = {phase: dict(seconds) for phase, seconds in self._totals[stage].items()}
        totals["forward"][COMPUTE] += self.copies_s(stage)
        totals["backward"][COMPUTE] += self.sums_s(stage)
        forward, backward = (
            tuple(
                (stream, s / PARTS)
                for _ in range(PARTS)
                for stream, s in totals[phase].items()
                if s or stream == COMPUTE
            )
            for phase in ("forward", "backward")
        )
        return StageWork(forward, backward, tuple(totals["once"].items()))

    @cached_property
    def _totals(self) -> list[dict[str, dict[str, float]]]:
        """Return by stage and phase the seconds on each stream that the search knows."""
        totals: list[dict[str, dict[str, float]]] = [
            {phase: {COMPUTE: 0.0, BOXING: 0.0} for phase in ("forward", "backward", "once")}
            for _ in range(self.stages)
        ]
        free = self.links.profile.overlapped
        for stream, prices in self.prices.items():
            for stage, phase, price in prices:
                share = 0.0 if stream == COMPUTE else free(self._level(price))
                totals[stage][phase][COMPUTE] += (1 - share) * price.seconds
                totals[stage][phase][BOXING] += share * price.seconds
        for stage in self.recomputed:
            for stream in (COMPUTE, BOXING):
                totals[stage]["backward"][stream] += totals[stage]["forward"][stream]
        return totals

    def copies_s(self, stage: int) -> float:
        """Return the seconds of copying forward results of a micro-batch into buffers.

        Without several micro-batches in flight there are no buffers (engine.stages).
        """
        if self.in_flight[stage] == 1:
            return 0.0
        return self._copies_s[stage]

    @cached_property
    def _copies_s(self) -> list[float]:
        found = [0.0] * self.stages
        for tensor, stage, seconds in self.copies():
            own = tensor in self.program.producer and self.where(tensor) == stage
            if not (own and stage in self.recomputed):  # else it is made again, not kept
                found[stage] += seconds
        return found

    def copies(self) -> Iterator[tuple[str, int, float]]:
        """Yield what buffers hold, as (tensor, stage, seconds of copying it)."""
        for (tensor, stage), state in self._start.items():
            producer = self.program.producer.get(tensor)
            forward = producer.phase == "forward" if producer else tensor in self.program.inputs
            readers = self.program.consumers.get(tensor, ())
            here = (op for op, _ in readers if self.stage_of[op.name] == stage)
            if forward and any(op.phase == "backward" for op in here):
                size = 2 * self.local(tensor, state)
                yield tensor, stage, self._moved_s("identity", "memory", size)

    def sums_s(self, stage: int) -> float:
        """Return the seconds of adding the gradients of one micro-batch to those before."""
        return self._sums_s[stage]

    @cached_property
    def _sums_s(self) -> list[float]:
        found = [0.0] * self.stages
        for name, seconds in self.sums():
            found[self.where(name)] += seconds
        return found

    def sums(self) -> Iterator[tuple[str, float]]:
        """Yield the gradients that are added up over micro-batches, and the seconds of each."""
        if self.micro_batches == 1:
            return
        gradients = (p.gradient for p in self.program.parameters if p.gradient in self.made)
        for name in filter(None, gradients):
            size = 3 * self.local(name, self.made[name])
            yield name, self._moved_s("add_n", "elementwise", size)

    def _moved_s(self, op_type: str, family: str, moved_bytes: int) -> float:
        """Return the seconds of an op that the engine adds to the program."""
        return op_s(
            self.links.profile.device, op_type=op_type, family=family, dtype="float32",
            flops=0.0, moved_bytes=moved_bytes,
        )  # fmt: skip

    def _level(self, price: Price) -> str:
        axes = price.boxing.axes if price.boxing is not None else ()
        return self.mesh.axes[axes[0]].level if axes else ""


def _grouped(tensor: str, paths: Mapping[Reader, Path]) -> Iterator[Redistribution]:
    """Yield one redistribution for all readers that want the same state."""
    readers: dict[Path, list[Reader]] = {}
    for reader, path in paths.items():
        if path:
            readers.setdefault(path, []).append(reader)
    for path, group in readers.items():
        yield Redistribution(tensor, path, tuple(group))
