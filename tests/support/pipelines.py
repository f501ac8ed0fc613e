"""Plans with stages, made by hand from plans without: for tests of what runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from autoddl.api import Plan
from autoddl.perfmodel.pipeline.pipeline_step import StageWork
from autoddl.perfmodel.pipeline.schedules import strict_in_flight
from autoddl.plan.parts import Part, Transfer
from autoddl.sbp.layout import OUTPUT, Layout, Redistribution
from autoddl.sbp.program import Program


def pass_s(work: StageWork) -> float:
    """Return the seconds of one micro-batch."""
    return sum(seconds for _, seconds in work.forward + work.backward)


def once_s(work: StageWork) -> float:
    """Return the seconds that come once per step."""
    return sum(seconds for _, seconds in work.once)


def in_stages(
    plan: Plan, stages: int, micro_batches: int, stage_of_module: Callable[[str], int | None]
) -> Plan:
    """Return a plan with stages: modules as told (None: with what the op reads), at least in order.

    Tensors arrive as they are made, and each stage boxes them for its own readers.
    """
    program = plan.program
    stage_of = _stages(program, stage_of_module)
    transfers = []
    for tensor in {t for op in program.ops if op.phase == "forward" for _, t in op.inputs}:
        source = _source(program, stage_of, tensor)
        readers = [op for op, _ in program.consumers[tensor] if op.phase == "forward"]
        targets = {stage_of[op.name] for op in readers}
        transfers += [Transfer(tensor, source, target) for target in sorted(targets - {source})]
    split = []
    for item in plan.redistributions:
        by_stage: dict[int, list[tuple[str, str]]] = {}
        for op, operand in item.readers:
            stage = stages - 1 if op == OUTPUT else stage_of[op]
            by_stage.setdefault(stage, []).append((op, operand))
        split += [
            (stage, Redistribution(item.tensor, item.path, tuple(readers)))
            for stage, readers in by_stage.items()
        ]
    layout, in_flight = plan.layout, strict_in_flight(stages, micro_batches)

    def part(stage: int) -> Part:
        own = Layout.of(
            plan.program,
            *(
                {name: value for name, value in held.items() if stage_of[name] == stage}
                for held in (layout.signatures, layout.variables, layout.inputs)
            ),
            tuple(item for where, item in split if where == stage),
        )
        arrivals = tuple(item for item in transfers if item.target == stage)
        ranks = tuple(range(stage * plan.mesh.size, (stage + 1) * plan.mesh.size))
        return Part(plan.mesh, own, ranks, arrivals, in_flight=in_flight[stage])

    parts = tuple(part(stage) for stage in range(stages))
    return replace(plan, parts=parts, micro_batches=micro_batches)


def recomputing(plan: Plan, stages: Collection[int]) -> Plan:
    """Return a plan in which just these stages make their activations again."""
    parts = (replace(part, recomputed=n in stages) for n, part in enumerate(plan.parts))
    return replace(plan, parts=tuple(parts))


def _stages(program: Program, stage_of_module: Callable[[str], int | None]) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in program.ops:
        if op.phase != "forward":
            continue
        before = [found[program.producer[t].name] for _, t in op.inputs if t in program.producer]
        found[op.name] = max([stage_of_module(op.module) or 0, *before])
    for op in reversed([op for op in program.ops if op.name in found]):
        if stage_of_module(op.module) is None and not any(
            t in program.producer for _, t in op.inputs
        ):
            readers = [o for _, t in op.outputs for o, _ in program.consumers[t]]
            found[op.name] = min(found[o.name] for o in readers if o.phase == "forward")
    for op in program.ops:
        for _, tensor in op.inputs:
            if op.phase == "forward" and tensor not in program.producer:
                found[tensor] = min(found.get(tensor, found[op.name]), found[op.name])
    for parameter in program.parameters:
        found.setdefault(parameter.tensor, 0)
        found |= dict.fromkeys(parameter.states, found[parameter.tensor])
    by_module = {op.module: found[op.name] for op in program.ops if op.name in found}
    for op in program.ops:
        if op.phase != "forward":
            found[op.name] = by_module.get(op.module, 0)
    return found


def _source(program: Program, stage_of: dict[str, int], tensor: str) -> int:
    producer = program.producer.get(tensor)
    return stage_of[tensor if producer is None else producer.name]
