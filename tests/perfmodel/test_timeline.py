"""The simulated step: closed forms by hand, bounds for any graph, the sum where nothing overlaps."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.layouts import assigned_layout
from autoddl.perfmodel.step import step_cost
from autoddl.perfmodel.timeline import DEVICE, MODEL_ERROR, Work, predict, simulate, works
from autoddl.sbp.mesh import Mesh
from autoddl.search import builder
from autoddl.search.random import random_assignment
from tests.clusters import cluster
from tests.programs import mlp, transformer

PROFILE = cluster()


def end(*found: Work) -> float:
    return max(span.end_s for span in simulate(found))


def test_a_boxing_hides_behind_an_op_that_does_not_need_it() -> None:
    first = Work("a", ((DEVICE, 1.0),), next=[1, 2])
    boxing = Work("a→B", (("node", 5.0),), waits=1, next=[3])
    other = Work("b", ((DEVICE, 3.0),), waits=1)
    reader = Work("c", ((DEVICE, 1.0),), waits=1)
    assert end(first, boxing, other, reader) == 1 + 5 + 1
    copied = Work("a→B", ((DEVICE, 5.0),), waits=1, next=[3])
    assert end(first, copied, other, reader) == 1 + 5 + 3 + 1


def test_boxings_of_one_level_queue_and_those_of_two_do_not() -> None:
    assert end(Work("x", (("node", 2.0),)), Work("y", (("node", 3.0),))) == 5
    assert end(Work("x", (("node", 2.0),)), Work("y", (("gpu", 3.0),))) == 3


def test_what_is_ready_first_goes_first() -> None:
    early = Work("early", ((DEVICE, 2.0),), next=[2])
    late = Work("late", (("node", 1.0),), next=[3])
    after_early = Work("after early", ((DEVICE, 1.0),), waits=1)
    after_late = Work("after late", ((DEVICE, 1.0),), waits=1)
    spans = simulate([early, late, after_early, after_late])
    assert [s.name for s in sorted(spans, key=lambda s: s.start_s) if s.resource == DEVICE] == [
        "early",
        "after late",
        "after early",
    ]


@st.composite
def graphs(draw: st.DrawFn) -> list[Work]:
    found: list[Work] = []
    for index in range(draw(st.integers(1, 12))):
        before = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        parts = draw(
            st.lists(
                st.tuples(st.sampled_from([DEVICE, "node", "gpu"]), st.integers(1, 9)), max_size=2
            )
        )
        found.append(Work(str(index), tuple((r, float(s)) for r, s in parts), len(before)))
        for earlier in before:
            found[earlier].next.append(index)
    return found


@given(graphs())
def test_any_graph(found: list[Work]) -> None:
    spans = simulate(found)
    total = {str(i): sum(s for _, s in w.parts) for i, w in enumerate(found)}
    assert sum(s.end_s - s.start_s for s in spans) == sum(total.values())
    loads = {r: [s for s in spans if s.resource == r] for r in {s.resource for s in spans}}
    for mine in loads.values():  # one at a time
        ordered = sorted(mine, key=lambda s: s.start_s)
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(ordered))
    starts = {
        name: min((s.start_s for s in spans if s.name == name), default=0.0) for name in total
    }
    ends = {name: max((s.end_s for s in spans if s.name == name), default=0.0) for name in total}
    for work in found:  # nothing starts before what it waits for has ended
        for later in work.next:
            if total[str(later)]:
                assert starts[str(later)] >= ends[work.name]
    last = max((s.end_s for s in spans), default=0.0)
    assert last <= sum(total.values())


@given(graphs())
def test_any_graph_runs_as_a_plain_loop_has_it(found: list[Work]) -> None:
    spans = [(s.name, s.resource, s.start_s, s.end_s) for s in simulate(found)]
    assert sorted(spans) == sorted(plainly(found))
    assert [start for _, _, start, _ in spans] == sorted(start for _, _, start, _ in spans)


def plainly(found: list[Work]) -> list[tuple[str, str, float, float]]:
    """Let every resource that is free take what has been ready longest, of equal ones the first."""
    waits, parts = [work.waits for work in found], [list(work.parts) for work in found]
    ready = {n: 0.0 for n, count in enumerate(waits) if count == 0}
    running: dict[str, tuple[float, int]] = {}
    spans, now = [], 0.0
    while ready or running:
        for number in [n for n in ready if not parts[n]]:
            del ready[number]
            for later in found[number].next:
                waits[later] -= 1
                if waits[later] == 0:
                    ready[later] = now
        if any(not parts[n] for n in ready):
            continue
        for _, number in sorted((since, n) for n, since in ready.items()):
            resource, seconds = parts[number][0]
            if resource not in running:
                del ready[number]
                running[resource] = now + seconds, number
                spans.append((found[number].name, resource, now, now + seconds))
        now = min((end_s for end_s, _ in running.values()), default=now)
        for resource, (end_s, number) in list(running.items()):
            if end_s == now:
                del running[resource], parts[number][0]
                ready[number] = now
    return spans


@pytest.mark.parametrize("make", [mlp, transformer])
def test_without_overlap_a_step_takes_the_sum(make) -> None:  # type: ignore[no-untyped-def]
    problem = builder.build(make(), Mesh.parse("2x2"), PROFILE)
    program, mesh = problem.program, problem.mesh
    for seed in range(4):
        assignment = random_assignment(problem, seed)
        layout = assigned_layout(problem, assignment)
        cost = step_cost(program, mesh, PROFILE, layout)
        none = replace(PROFILE, overlap={"node": 0.0, "gpu": 0.0})
        all_of_it = replace(PROFILE, overlap={"node": 1.0, "gpu": 1.0})
        plain = predict(program, mesh, none, layout)
        assert plain.step_s == pytest.approx(cost.step_s)
        assert plain.overlap_s == 0
        assert plain.uncertainty_s > max(cost.uncertainty_s, MODEL_ERROR * plain.step_s)
        hidden = predict(program, mesh, all_of_it, layout)
        assert max(cost.compute_s, cost.communication_s / 2) <= hidden.step_s <= cost.step_s
        assert hidden.overlap_s == pytest.approx(cost.step_s - hidden.step_s)
        found = works(program, mesh, PROFILE, layout, cost)
        made = {name for op in program.ops for _, name in op.outputs}
        held = dict.fromkeys(r.tensor for r in layout.redistributions if r.tensor not in made)
        first = [w.name for w in found if w.name in held]
        assert list(dict.fromkeys(first)) == list(held)  # whatever the hash seed
        assert len(found) == len(program.ops) + sum(len(r.path) for r in layout.redistributions)


@pytest.mark.parametrize("make", [mlp, transformer])
def test_an_op_waits_for_what_makes_and_moves_its_inputs(make) -> None:  # type: ignore[no-untyped-def]
    problem = builder.build(make(), Mesh.parse("2x2"), PROFILE)
    program = problem.program
    for seed in range(4):
        layout = assigned_layout(problem, random_assignment(problem, seed))
        cost = step_cost(program, problem.mesh, PROFILE, layout)
        found = works(program, problem.mesh, PROFILE, layout, cost)
        waited = [[w.name for w in found if i in w.next] for i in range(len(found))]
        for work, names in zip(found, waited, strict=True):
            assert work.waits == len(names)
            if work.name in program.op:
                moved = {t for t in names if t in program.tensor}
                expected = {
                    next(
                        (r.tensor for r in layout.redistributions if (work.name, o) in r.readers),
                        program.producer[t].name if t in program.producer else None,
                    )
                    for o, t in program.op[work.name].inputs
                }
                assert set(names) == expected - {None}
                assert moved <= {t for _, t in program.op[work.name].inputs}
            else:  # a boxing waits for one before it, or for the op that makes the tensor
                made = program.producer.get(work.name)
                assert set(names) <= {work.name, *([made.name] if made else [])}
        assert all(later > i for i, w in enumerate(found) for later in w.next)
