"""An assignment that is cut into stages: what goes between them, what they take and hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from autoddl.perfmodel.oneflow.memory import MemoryEstimate, stage_memory
from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE, PipelineStep, StageWork
from autoddl.perfmodel.pipeline.pipeline_timeline import Timeline, closed_form_s, simulate
from autoddl.perfmodel.pipeline.stage_partition import strict_in_flight
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.perfmodel.step_cost import Price
from autoddl.plan.value import Transfer, pipeline_step
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

Memories = dict[tuple[int | None, ...], MemoryEstimate]


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
        paths: dict[str, dict[Reader, Path]] = {}
        for item in self.assigned.layout.redistributions:
            paths.setdefault(item.tensor, {}).update(dict.fromkeys(item.readers, item.path))
        transfers: list[Transfer] = []
        redistributions: list[Redistribution] = []
        for tensor in self.made:
            wanted = paths.get(tensor, {})
            for stage, readers in self._readers(tensor, wanted).items():
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
        return Transfer(tensor, source, target, path, None if self._once(tensor) else seconds)

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

    def sizes(self) -> Iterator[tuple[str, int, str]]:
        """Yield what devices hold: the bytes of variables, gradients and, by micro-batch, activations."""
        gradients = {p.gradient for p in self.program.parameters}
        for name in self.layout.variables:
            yield name, self.local(name, self.made[name]), "variable"
        for name in kept_tensors(self.program):
            if name in self.made:
                kind = "gradient" if name in gradients else "activation"
                yield name, self.local(name, self.made[name]), kind

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
            stage, phase = self.stage(item), self._phase(item.readers)
            boxings += [(stage, phase, price) for price in self._path(item)]
        for sent in self.transfers:
            boxings += [
                (sent.source, self._sent_in(sent), price) for price in self._sent_path(sent)
            ]
        return {COMPUTE: compute, BOXING: boxings}

    def boxings(self) -> Iterator[tuple[Redistribution, str, float]]:
        """Yield the redistributions inside stages with their phases and seconds."""
        for item in self.redistributions:
            seconds = sum(price.seconds for price in self._path(item))
            yield item, self._phase(item.readers), seconds

    def sendings(self) -> Iterator[tuple[Transfer, str, float]]:
        """Yield the transfers, with the phases and seconds of the boxings that come before."""
        for sent in self.transfers:
            yield sent, self._sent_in(sent), sum(price.seconds for price in self._sent_path(sent))

    def _sent_in(self, sent: Transfer) -> str:
        producer = self.program.producer.get(sent.tensor)
        return producer.phase if producer else "forward"

    def _sent_path(self, sent: Transfer) -> Sequence[Price]:
        prices = self.assigned.problem.prices
        return prices.path(sent.tensor, self.made[sent.tensor], sent.path)

    def _path(self, item: Redistribution) -> Sequence[Price]:
        start = self._start[item.tensor, self.stage(item)]
        return self.assigned.problem.prices.path(item.tensor, start, item.path)

    def stage(self, item: Redistribution) -> int:
        """Return the stage whose ops read what a redistribution makes."""
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
        totals["backward"][COMPUTE] += self.sums_s[stage]
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
        """Return the seconds of copying forward results of a micro-batch into buffers."""
        return sum(seconds for _, seconds in self.buffered[stage])

    @cached_property
    def buffered(self) -> list[list[tuple[str, float]]]:
        """Return by stage what its buffers hold if several are in flight, and what copying takes."""
        found: list[list[tuple[str, float]]] = [[] for _ in range(self.stages)]
        for tensor, stage, seconds in self.copies():
            own = tensor in self.program.producer and self.where(tensor) == stage
            again = own and stage in self.recomputed  # else it is made again, not kept
            if self.in_flight[stage] > 1 and not again:
                found[stage].append((tensor, seconds))
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

    @cached_property
    def sums_s(self) -> list[float]:
        """Return by stage the seconds of adding the gradients of one micro-batch to those before."""
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
        work = OpWork(op_type, family, "float32", 0.0, moved_bytes)
        return op_s(self.links.profile.device, work)

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
