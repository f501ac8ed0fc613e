"""The event loop: closed forms by hand, bounds for any graph, a plain loop as oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.perfmodel.resources import DEVICE
from autoddl.perfmodel.simulation.event_simulation import successors
from tests.perfmodel.works import SimulatedWork, graphs, works_of


def end(*found: SimulatedWork) -> float:
    return max(span.end_s for span in works_of(found).spans())


def test_a_boxing_hides_behind_an_op_that_does_not_need_it() -> None:
    first = SimulatedWork("a", ((DEVICE, 1.0),), next=[1, 2])
    boxing = SimulatedWork("a→B", (("node", 5.0),), waits=1, next=[3])
    other = SimulatedWork("b", ((DEVICE, 3.0),), waits=1)
    reader = SimulatedWork("c", ((DEVICE, 1.0),), waits=1)
    assert end(first, boxing, other, reader) == 1 + 5 + 1
    copied = SimulatedWork("a→B", ((DEVICE, 5.0),), waits=1, next=[3])
    assert end(first, copied, other, reader) == 1 + 5 + 3 + 1


def test_boxings_of_one_level_queue_and_those_of_two_do_not() -> None:
    assert end(SimulatedWork("x", (("node", 2.0),)), SimulatedWork("y", (("node", 3.0),))) == 5
    assert end(SimulatedWork("x", (("node", 2.0),)), SimulatedWork("y", (("gpu", 3.0),))) == 3


def test_what_is_ready_first_goes_first() -> None:
    early = SimulatedWork("early", ((DEVICE, 2.0),), next=[2])
    late = SimulatedWork("late", (("node", 1.0),), next=[3])
    after_early = SimulatedWork("after early", ((DEVICE, 1.0),), waits=1)
    after_late = SimulatedWork("after late", ((DEVICE, 1.0),), waits=1)
    spans = works_of([early, late, after_early, after_late]).spans()
    assert [s.name for s in sorted(spans, key=lambda s: s.start_s) if s.resource == DEVICE] == [
        "early",
        "after late",
        "after early",
    ]


@given(graphs())
def test_any_graph(found: list[SimulatedWork]) -> None:
    spans = works_of(found).spans()
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
    critical = works_of(found).critical_s().tolist()
    assert sum(critical) == last  # without a pause
    assert all(0 <= s <= total[str(i)] for i, s in enumerate(critical))


PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=40)


@given(PAIRS)
def test_successors_are_the_distinct_pairs_in_order(pairs: list[tuple[int, int]]) -> None:
    first, then = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    waits, begin, later = successors(first, then, 8)
    rows = [later[a:b].tolist() for a, b in itertools.pairwise(begin.tolist())]
    assert rows == [sorted({b for a, b in pairs if a == work}) for work in range(8)]
    assert waits.tolist() == [len({a for a, b in pairs if b == work}) for work in range(8)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=30))
def test_what_has_the_least_rank_goes_first(ranked: list[tuple[int, int]]) -> None:
    """All are ready at once; of equal ranks the first work goes first."""
    works = works_of(
        [SimulatedWork(str(n), ((DEVICE, float(s)),)) for n, (_, s) in enumerate(ranked)]
    )
    run = works.ranked(np.array([float(rank) for rank, _ in ranked]))
    turn = sorted(range(len(ranked)), key=lambda n: (ranked[n][0], n))
    assert run.who[:, 0].tolist() == turn
    assert run.when[:, 1].tolist() == list(itertools.accumulate(float(ranked[n][1]) for n in turn))


def test_the_critical_path_is_what_the_end_waits_for() -> None:
    first = SimulatedWork("a", ((DEVICE, 1.0),), next=[1, 2])
    boxing = SimulatedWork("a→B", (("node", 2.0), ("gpu", 3.0)), waits=1, next=[3])
    other = SimulatedWork("b", ((DEVICE, 3.0),), waits=1)
    reader = SimulatedWork("c", ((DEVICE, 1.0),), waits=1)
    assert works_of([first, boxing, other, reader]).critical_s().tolist() == [1, 5, 0, 1]
    queued = SimulatedWork("b", ((DEVICE, 7.0),), waits=1)
    assert works_of([first, boxing, queued, reader]).critical_s().tolist() == [1, 0, 7, 1]


def test_an_op_takes_longer_while_a_boxing_runs_beside_it() -> None:
    op, boxing = SimulatedWork("a", ((DEVICE, 6.0),)), SimulatedWork("x", (("node", 3.0),))
    assert works_of([op, boxing], {"node": 0.5}).end_s == 3 + (6 - 3 / 1.5)
    short = SimulatedWork("a", ((DEVICE, 1.0),), next=[1])
    begun = SimulatedWork("x", (("node", 3.0),), waits=1)
    other = SimulatedWork("b", ((DEVICE, 1.0),))  # before the boxing for 0 s, beside it for 1.5 s
    spans = works_of([short, begun, other], {"node": 0.5}).spans()
    assert [(s.name, s.start_s, s.end_s) for s in spans] == [
        ("a", 0.0, 1.0), ("b", 1.0, 2.5), ("x", 1.0, 4.0),
    ]  # fmt: skip
    two = [op, boxing, SimulatedWork("y", (("gpu", 1.0),))]  # the worse of both counts
    took = works_of(two, {"node": 0.5, "gpu": 1.0}).end_s
    assert took == pytest.approx(3 + (6 - 1 / 2 - 2 / 1.5))


@given(graphs())
def test_slowed_ops_do_all_their_work(found: list[SimulatedWork]) -> None:
    slow = {"node": 0.5, "gpu": 1.0}
    works = works_of(found, slow)
    spans = works.spans()
    links = [s for s in spans if s.resource != DEVICE]
    for span in spans:
        work = found[int(span.name)]
        nominal = sorted(s for r, s in work.parts if r == span.resource)
        times = sorted({span.start_s, span.end_s} | {
            t for s in links for t in (s.start_s, s.end_s) if span.start_s < t < span.end_s
        })  # fmt: skip
        done = 0.0
        for a, b in itertools.pairwise(times):
            beside = [slow[s.resource] for s in links if s.start_s <= a and b <= s.end_s]
            done += (b - a) / (1 + max(beside, default=0.0) * (span.resource == DEVICE))
        assert any(abs(done - s) < 1e-9 for s in nominal)
    assert works.end_s == max((s.end_s for s in spans), default=0.0)
    assert abs(sum(works.critical_s()) - works.end_s) < 1e-9
    for resource in (DEVICE, *slow):
        busy = sum(s for work in found for r, s in work.parts if r == resource)
        assert works.end_s >= busy - 1e-9


@given(graphs())
def test_any_graph_runs_as_a_plain_loop_has_it(found: list[SimulatedWork]) -> None:
    spans = [(s.name, s.resource, s.start_s, s.end_s) for s in works_of(found).spans()]
    assert sorted(spans) == sorted(plainly(found))
    assert [start for _, _, start, _ in spans] == sorted(start for _, _, start, _ in spans)


def plainly(found: list[SimulatedWork]) -> list[tuple[str, str, float, float]]:
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
