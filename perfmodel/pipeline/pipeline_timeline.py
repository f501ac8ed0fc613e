"""When the stages of a pipeline compute, communicate and wait: a simulation of one step.

Each stage has a compute and a boxing stream, each directed pair of ranks a stream for transfers. A
stream does one thing at a time; what was ready first goes first. Where the schedule fixes the order of
a rank's tasks they run one after another (step_tasks.py), messages that are a rendezvous among them.

Two equal stages, forward 1 s and backward 2 s, with 3 micro-batches under 1F1B take
(3 − 1)·3 + 2·3 = 12 s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from autoddl.perfmodel.pipeline.pipeline_step import BOXING, COMPUTE, PipelineStep, TransferWork
from autoddl.perfmodel.pipeline.schedules import CREDITS, Pass
from autoddl.perfmodel.pipeline.step_tasks import CG, Task, links_of, step_tasks
from autoddl.perfmodel.resources import ResourceParts
from autoddl.perfmodel.simulation.event_simulation import Works, by_number


@dataclass(frozen=True)
class Span:
    """A part of a pass ("F3", "B3"), of a transfer or of "once", in seconds after the step began.

    A transfer is on the stream "0→1" and belongs to its source's stage.
    """

    name: str
    stage: int
    stream: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """When everything ran; `in_flight` is the peak number of micro-batches by stage.

    A micro-batch is in flight from the begin of its forward pass to the end of its backward pass.
    """

    spans: tuple[Span, ...]
    step_s: float
    in_flight: tuple[int, ...]

    @property
    def idle(self) -> tuple[float, ...]:
        """Return by stage the share of the step in which it neither computes nor runs boxings."""
        busy: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for span in self.spans:
            if span.stream in (COMPUTE, BOXING):
                busy[span.stage].append((span.start_s, span.end_s))
        count = len(self.in_flight)
        if self.step_s == 0:
            return (0.0,) * count
        return tuple(1 - _covered(busy[stage]) / self.step_s for stage in range(count))


def closed_form_s(
    stage_s: Sequence[float],
    micro_batches: int,
    *,
    transfer_s: Iterable[float] = (),
    once_s: Sequence[float] = (),
) -> float:
    """Return (m − 1) · max t_i + Σ t_i + Σ e_i + max o_i.

    Exact for GPipe and 1F1B of equal stages without transfers, and for one micro-batch; also for GPipe
    of any stages where one stage has both the longest forward and the longest backward pass and no
    transfer is longer than these. Always if the first stage has the longest `once_s`, else the step is
    shorter. 1F1B of uneven stages is at most this long without transfers; with them it may be
    longer, since its few micro-batches in flight don't hide them.

    Source: AMP, §3.4 and supplement 6.4; docs/formulas.md.
    """
    steady_s = (micro_batches - 1) * max(stage_s) + sum(stage_s)
    return steady_s + sum(transfer_s) + max(once_s, default=0.0)


def simulate(step: PipelineStep) -> Timeline:
    """Return when everything of the step runs."""
    return _Simulation(step).run()


class _Simulation:
    """The works of a step, and what each of them is."""

    def __init__(self, step: PipelineStep) -> None:
        self.step = step
        self.names: list[str] = []
        self.stage_of: list[int] = []
        self.parts: list[ResourceParts] = []
        self.waits: list[tuple[int, int]] = []  # pairs; the second waits for the first
        self.number: dict[Pass, int] = {}
        self.messages: dict[tuple[str, int, int, int], list[int]] = {}  # a work for each tensor

    def run(self) -> Timeline:
        self._add_passes()
        for transfer in self.step.transfers:
            stream = f"{transfer.source}→{transfer.target}"
            self._add_transfer(transfer, ((stream, transfer.seconds),))
        for transfer in _untold(self.step):
            self._add_transfer(transfer, ())
        self.waits += self._credits() if self.step.schedule == CREDITS else self._turns()
        for stage, work in enumerate(self.step.stages):
            if work.once:
                passes = [Pass("B", stage, i) for i in range(self.step.micro_batches)]
                after = [*map(self.number.__getitem__, passes), *self._blocking(stage)]
                self._add("once", stage, work.once, after)
        first, then = np.array(self.waits, dtype=np.int64).reshape(-1, 2).T
        works = Works.of(self.names, *by_number(self.parts), first, then)
        spans = _joined([
            Span(name, self.stage_of[work], resource.partition(" ")[0], start_s, end_s)
            for name, resource, start_s, end_s, work in works.spans()
        ])  # fmt: skip
        step_s = max((span.end_s for span in spans), default=0.0)
        in_flight = _in_flight(spans, len(self.step.stages))
        return Timeline(tuple(spans), step_s, in_flight)

    def _add(self, name: str, stage: int, parts: ResourceParts, after: Iterable[int] = ()) -> int:
        """Add a work on the stage's own streams and on its device."""
        device = self.step.device_of[stage] if self.step.device_of else stage
        owner = {COMPUTE: f" {device}", BOXING: f" {stage}"}
        self.parts.append(tuple((s + owner.get(s, ""), seconds) for s, seconds in parts))
        self.names.append(name)
        self.stage_of.append(stage)
        number = len(self.names) - 1
        self.waits += [(earlier, number) for earlier in after]
        return number

    def _add_passes(self) -> None:
        for stage, work in enumerate(self.step.stages):
            for i in range(self.step.micro_batches):
                forward = self._add(f"F{i}", stage, work.forward)
                self.number[Pass("F", stage, i)] = forward
                self.number[Pass("B", stage, i)] = self._add(
                    f"B{i}", stage, work.backward, after=[forward]
                )

    def _add_transfer(self, transfer: TransferWork, parts: ResourceParts) -> None:
        source, target = transfer.source, transfer.target
        for i in range(self.step.micro_batches):
            name = f"{transfer.kind}{i} {transfer.tensor}".strip()
            made, read = (self.number[Pass(transfer.kind, s, i)] for s in (source, target))
            number = self._add(name, source, parts, after=[made])
            self.waits.append((number, read))
            works = self.messages.setdefault((transfer.kind, i, source, target), [])
            self.waits += [(works[-1], number)] if works and self.step.rendezvous else []
            works.append(number)

    def _credits(self) -> Iterator[tuple[int, int]]:
        """Yield works and others that wait for them until fewer micro-batches are in flight."""
        stages = len(self.step.stages)
        for stage, credit in enumerate(self.step.credits or (2 * stages,) * stages):
            for i in range(credit, self.step.micro_batches):
                yield self.number[Pass("B", stage, i - credit)], self.number[Pass("F", stage, i)]

    def _turns(self) -> Iterator[tuple[int, int]]:
        """Yield works and others that wait for them since they come behind them in their stage."""
        for stage, first, then in step_tasks(self.step).waits():
            yield self._works(stage, first)[-1], self._works(stage, then)[0]

    def _blocking(self, stage: int) -> list[int]:
        """Return the last works of the messages that occupy a stage."""
        if not self.step.rendezvous:
            return []
        return [works[-1] for (_, _, *ends), works in self.messages.items() if stage in ends]

    def _works(self, stage: int, task: Task) -> list[int]:
        if task.kind == CG:
            return [self.number[Pass(task.turn, stage, task.micro_batch)]]
        return self.messages[task.message(stage)]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the spans, with those as one that follow each other on a stream under one name."""
    found: list[Span] = []
    last: dict[tuple[int, str], int] = {}
    for span in spans:
        key = span.stage, span.stream
        before = found[last[key]] if key in last else None
        if before is not None and (before.name, before.end_s) == (span.name, span.start_s):
            found[last[key]] = replace(before, end_s=span.end_s)
        else:
            last[key] = len(found)
            found.append(span)
    return found


def _untold(step: PipelineStep) -> list[TransferWork]:
    """Return what stands for data from neighbours, forward or back, where no transfer goes that way.

    Where messages are a rendezvous those that carry nothing are there, and no others.
    """
    if step.rendezvous:
        ends = {(t.source, t.target) for t in step.transfers}
        return [TransferWork(a, b, 0.0) for _, a, b in links_of(step) if (a, b) not in ends]
    told, last = {transfer.kind for transfer in step.transfers}, len(step.stages) - 1
    found = [TransferWork(s - 1, s, 0.0) for s in range(1, last + 1) if "F" not in told]
    return found + [TransferWork(s + 1, s, 0.0) for s in range(last) if "B" not in told]


def _in_flight(spans: Sequence[Span], stages: int) -> tuple[int, ...]:
    begin: dict[tuple[int, str], float] = {}
    end: dict[tuple[int, str], float] = {}
    for span in spans:  # of a pass they are in the order in which they run
        if span.stream in (COMPUTE, BOXING):
            begin.setdefault((span.stage, span.name), span.start_s)
            end[span.stage, span.name] = span.end_s
    changes: list[list[tuple[float, int]]] = [[] for _ in range(stages)]
    for (stage, name), at in begin.items():
        if name[0] in "FB":
            change = (at, 1) if name[0] == "F" else (end[stage, name], -1)
            changes[stage].append(change)
    # At one time, ends come first.
    return tuple(max(accumulate(c for _, c in sorted(mine))) for mine in changes)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union."""
    total = until = 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
