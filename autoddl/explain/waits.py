"""What a step waits for: its critical path, by module and by link; the shares add up to the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autoddl.explain.layer_rows import GRAPH, joined
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.plan.value import PlanValue
from autoddl.sbp.boxing import LOCAL
from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import pattern

COMPUTE, COPIES = "compute", "copies on the device"  # beside links, what steps wait for


@dataclass(frozen=True)
class Waited:
    """The seconds of a step that modules of one pattern have on its critical path, by what they do."""

    modules: tuple[str, ...]
    compute_s: float
    communication_s: float

    @property
    def name(self) -> str:
        """Return the modules as one text."""
        return joined(self.modules)

    @property
    def seconds(self) -> float:
        """Return all of them."""
        return self.compute_s + self.communication_s


@dataclass(frozen=True)
class Waits:
    """The critical path of a step by modules, most seconds first, and by link or compute."""

    step_s: float
    layers: tuple[Waited, ...]
    links: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class StageWait:
    """What a stage does in a step, and how long it waits for others, as a share of the step.

    `passes_s` are the seconds of the forward and backward pass of a micro-batch, and of what comes once
    per step. Plans made by hand have no seconds.
    """

    number: int
    devices: str
    passes_s: tuple[float, ...]
    in_flight: int | None
    idle: float | None
    memory_bytes: int


def stage_waits(plan: PlanValue) -> tuple[StageWait, ...]:
    """Return what each stage of a plan does and waits for; none of a plan without stages."""
    if not plan.pipelined:
        return ()
    timeline = plan.timeline if all(part.work is not None for part in plan.parts) else None
    return tuple(
        StageWait(
            number, " ".join((str(part.mesh), *part.kinds)),
            () if part.work is None else tuple(
                sum(seconds for _, seconds in each)
                for each in (part.work.forward, part.work.backward, part.work.once)
            ),
            timeline.in_flight[number] if timeline else None,
            timeline.idle[number] if timeline else None,
            part.memory_bytes,
        )
        for number, part in enumerate(plan.parts)
    )  # fmt: skip


def waits_of(timeline: StepTimeline) -> Waits:
    """Return what a step waits for. What boxings take counts for the module that makes the tensor."""
    ops_s, boxings_s = timeline.critical_s()
    by_module = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    module, program = modules_by_name(timeline.program), timeline.program
    for op, seconds in zip(program.ops, ops_s.tolist(), strict=True):
        by_module[module[op.name]][0] += seconds
    for row, seconds in zip(timeline.boxing.row.tolist(), boxings_s.tolist(), strict=True):
        by_module[module[program.tensors[timeline.tensor[row]].name]][1] += seconds
    alike = defaultdict[str, list[str]](list)
    for name in by_module:
        alike[pattern(name)].append(name)
    layers = [
        Waited(tuple(names), *(sum(by_module[name][n] for name in names) for n in range(2)))
        for names in alike.values()
    ]
    layers.sort(key=lambda each: -each.seconds)
    links = links_s(timeline)
    return Waits(
        sum(links.values()), tuple(each for each in layers if each.seconds > 0),
        tuple(sorted(links.items(), key=lambda item: -item[1])),
    )  # fmt: skip


def links_s(timeline: StepTimeline) -> Mapping[str, float]:
    """Return the seconds of the critical path by level of links, and those of compute."""
    ops_s, boxings_s = timeline.critical_s()
    kinds = [price.boxing for price in timeline.cost.boxings.prices]
    over = [
        COPIES
        if step is None or step.primitive == LOCAL
        else timeline.mesh.axes[step.axes[0]].level
        for step in kinds
    ]
    found = {COMPUTE: float(ops_s.sum())}
    for kind, seconds in zip(timeline.boxing.items.tolist(), boxings_s.tolist(), strict=True):
        name = over[kind] if over[kind] == COPIES else f"links of level {over[kind]}"
        found[name] = found.get(name, 0.0) + seconds
    return found


def modules_by_name(program: Program) -> Mapping[str, str]:
    """Return the module of every op and tensor; that of a parameter for its update and states."""
    found = {name: GRAPH for name in program.inputs}
    for parameter in program.parameters:
        own = parameter.tensor.rpartition(".")[0] or GRAPH
        found |= dict.fromkeys((parameter.tensor, *parameter.states), own)
        if parameter.update is not None:
            found[parameter.update] = own
    for op in program.ops:
        found.setdefault(op.name, op.module or GRAPH)
        found |= {tensor: found[op.name] for _, tensor in op.outputs}
    return found
