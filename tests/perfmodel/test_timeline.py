"""The simulated step: against works made one by one; the sum where nothing overlaps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.simulation.event_simulation import Works
from autoddl.perfmodel.step_cost import StepCost, StepPrices
from autoddl.perfmodel.timeline import MODEL_ERROR, StepTimeline
from autoddl.sbp.boxing import LOCAL
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.reductions.saved_tensors import SavedTensors
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.perfmodel.works import SimulatedWork, works_of
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied, transformer
from tests.support.simulated import predict

PROFILE = cluster()


def rows(found: Works) -> list[SimulatedWork]:
    """The works one by one."""
    graph = found.graph
    each = list(zip(graph.resource.tolist(), graph.seconds.tolist(), strict=True))
    parts = [
        tuple((found.resources[r], s) for r, s in each[a:b])
        for a, b in pairwise(graph.begin.tolist())
    ]
    later = [graph.later[a:b].tolist() for a, b in pairwise(graph.first.tolist())]
    columns = found.names, parts, graph.waits.tolist(), later
    return [SimulatedWork(*row) for row in zip(*columns, strict=True)]


def one_by_one(layout: Layout, mesh: Mesh, cost: StepCost) -> list[SimulatedWork]:
    """The works of a step as their names say: each op, then the boxings of what it makes."""
    program, before = layout.program, dict[str, list[str]]()
    parts: dict[str, ResourceParts] = {}
    boxings: dict[str, list[str]] = {}  # by the op that makes the tensor, "" for what is stored
    prices = iter(cost.boxings.rows())
    for op, price in zip(program.ops, cost.ops.rows(), strict=True):
        parts[op.name] = ((DEVICE, price.seconds),) if price.seconds else ()
        before[op.name] = [
            program.producer[t].name if t in program.producer else "" for _, t in op.inputs
        ]
    items = [(item, [next(prices) for _ in item.path]) for item in layout.redistributions]
    order = {
        name: number for number, name in enumerate([t for o in program.ops for _, t in o.outputs])
    }
    first = {item.tensor: number for number, (item, _) in reversed([*enumerate(items)])}
    items.sort(key=lambda pair: (order.get(pair[0].tensor, -1), first[pair[0].tensor]))
    for number, (item, path) in enumerate(items):
        last = program.producer[item.tensor].name if item.tensor in program.producer else ""
        mine = boxings.setdefault(last, [])
        for step, price in enumerate(path):
            name = f"{item.tensor} {number} {step}"
            assert price.boxing is not None
            local = price.boxing.primitive == LOCAL
            level = DEVICE if local else mesh.axes[price.boxing.axes[0]].level
            free = PROFILE.overlapped(level) if level != DEVICE else 0.0
            shares = ((DEVICE, (1 - free) * price.seconds), (level, free * price.seconds))
            parts[name] = tuple((r, s) for r, s in shares if s > 0)
            before[name], last = [last], name
            mine.append(name)
        for op, operand in item.readers:
            if op in program.op:
                before[op][[o for o, _ in program.op[op].inputs].index(operand)] = last
    for parameter in program.parameters:
        if parameter.update is not None:
            readers = program.consumers[parameter.tensor]
            before[parameter.update] += [o.name for o, _ in readers if o.name != parameter.update]
    turn = [*boxings.get("", ())]
    for op in program.ops:
        turn += [op.name, *boxings.get(op.name, ())]
    place = {name: number for number, name in enumerate(turn)}
    found = [SimulatedWork(name, parts[name], len({*before[name]} - {""})) for name in turn]
    for name in turn:
        for earlier in {*before[name]} - {""}:
            found[place[earlier]].next.append(place[name])
    return found


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("mesh", ["4", "2x2", "2x2x2"])
@pytest.mark.parametrize("make", [mlp, transformer, tied])
def test_the_works_of_a_step_are_those_of_its_names(
    make: Callable[[], Program], mesh: str, kept: bool
) -> None:
    problem = builder.build(make(), Mesh.parse(mesh), PROFILE)
    problem = SavedTensors.apply(problem).network if kept else problem
    for seed in range(3):
        layout = assigned_layout(problem, random_assignment(problem, seed))
        found = StepTimeline(problem.setting.prices, layout)
        expected = one_by_one(layout, problem.mesh, found.cost)
        mine = rows(found.works)
        assert [work.parts for work in mine] == [work.parts for work in expected]
        assert [work.waits for work in mine] == [work.waits for work in expected]
        assert [sorted(work.next) for work in mine] == [sorted(work.next) for work in expected]
        assert found.works.end_s == works_of(expected).end_s


@pytest.mark.parametrize("make", [mlp, transformer])
def test_without_overlap_a_step_takes_the_sum(make: Callable[[], Program]) -> None:
    problem = builder.build(make(), Mesh.parse("2x2"), PROFILE)
    program, mesh = problem.program, problem.mesh
    for seed in range(4):
        assignment = random_assignment(problem, seed)
        layout = assigned_layout(problem, assignment)
        cost = StepPrices(program, mesh, PROFILE).step(layout).totals
        none = replace(PROFILE, overlap={"node": 0.0, "gpu": 0.0})
        all_of_it = replace(PROFILE, overlap={"node": 1.0, "gpu": 1.0})
        plain = predict(mesh, none, layout)
        assert plain.step_s == pytest.approx(cost.step_s)
        assert plain.overlap_s == 0
        assert plain.uncertainty_s > max(cost.uncertainty_s, MODEL_ERROR * plain.step_s)
        hidden = predict(mesh, all_of_it, layout)
        assert max(cost.compute_s, cost.communication_s / 2) <= hidden.step_s <= cost.step_s
        assert hidden.overlap_s == pytest.approx(cost.step_s - hidden.step_s)
        found = rows(StepTimeline(problem.setting.prices, layout).works)
        made = {name for op in program.ops for _, name in op.outputs}
        held = dict.fromkeys(r.tensor for r in layout.redistributions if r.tensor not in made)
        first = [w.name for w in found if w.name in held]
        assert list(dict.fromkeys(first)) == list(held)  # whatever the hash seed
        assert len(found) == len(program.ops) + sum(len(r.path) for r in layout.redistributions)


@pytest.mark.parametrize("make", [mlp, transformer])
def test_an_op_waits_for_what_makes_and_moves_its_inputs(make: Callable[[], Program]) -> None:
    problem = builder.build(make(), Mesh.parse("2x2"), PROFILE)
    program = problem.program
    rewritten = [
        (reader.name, parameter.update)
        for parameter in program.parameters
        for reader, _ in program.consumers[parameter.tensor]
        if reader.name != parameter.update
    ]
    for seed in range(4):
        layout = assigned_layout(problem, random_assignment(problem, seed))
        found = rows(StepTimeline(problem.setting.prices, layout).works)
        waited = [[w.name for w in found if i in w.next] for i in range(len(found))]
        for work, names in zip(found, waited, strict=True):
            assert work.waits == len(names)
            if work.name in program.op:
                moved = {t for t in names if t in program.tensor and t not in program.op}
                expected = {
                    next(
                        (r.tensor for r in layout.redistributions if (work.name, o) in r.readers),
                        program.producer[t].name if t in program.producer else None,
                    )
                    for o, t in program.op[work.name].inputs
                }
                expected |= {reader for reader, update in rewritten if update == work.name}
                assert set(names) == expected - {None}
                assert moved <= {t for _, t in program.op[work.name].inputs}
            else:  # a boxing waits for one before it, or for the op that makes the tensor
                made = program.producer.get(work.name)
                assert set(names) <= {work.name, *([made.name] if made else [])}
        assert all(later > i for i, w in enumerate(found) for later in w.next)
