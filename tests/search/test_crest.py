"""The moment in which a plan takes most: what is counted is in memory, and bounds plans that fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autoddl.make_plan import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.search import builder, crest, exact
from autoddl.search.baselines import BASELINES
from autoddl.search.kept import with_kept
from autoddl.search.passes import made_again
from autoddl.search.priced import KNOWN
from autoddl.search.problem import KEPT, Problem
from autoddl.search.random import random_assignment
from autoddl.search.result import Assignment, SearchResult
from tests.clusters import cluster
from tests.programs import transformer

DEEP = replace(transformer(layers=6, batch=4, length=2, vocabulary=256), device="cuda")


def baseline(problem: Problem, name: str) -> Assignment:
    held = BASELINES[name](problem)
    assert held is not None
    return held


def crest_of(problem: Problem, assignment: Assignment) -> crest.Moment:
    moment = crest.moment(problem, assignment)
    assert moment is not None
    return moment


@cache
def searched(mesh: str) -> tuple[Problem, int, SearchResult]:
    """Return a problem with prices of memory, its limit, and what was found under that."""
    found = with_kept(builder.build(DEEP, Mesh.parse(mesh), cluster(), compute_stream=True))
    held = baseline(found, "ZeRO 2")
    limit = (3 * found.memory_bytes(held) + 7 * found.least_memory_bytes) // 10
    return found, limit, exact.search(found, memory_bytes=limit, budget=30, stop_gap=0.2)


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_what_is_counted_is_in_memory(mesh: str) -> None:
    found, _, result = searched(mesh)
    held = [a for make in BASELINES.values() if (a := make(found)) is not None]
    again = [made_again(found, a) for a in held]
    drawn = [random_assignment(found, seed) for seed in range(2)]
    counted = more = 0
    for assignment in (result.assignment, *held, *again, *drawn):
        moment = crest.moment(found, assignment)
        if moment is not None:
            counted += 1
            bytes_then = moment.memory_bytes(found, assignment)
            assert bytes_then <= Assigned(found, assignment).memory_bytes
            more += bytes_then > found.memory_bytes(assignment)
    assert counted > 4
    assert more > 1


def test_a_gradient_passes_with_the_buffers_and_the_result() -> None:
    found, _, _ = searched("4")
    moment = crest_of(found, baseline(found, "data parallel"))
    edge = found.edges[moment.edge]
    whole = found.program.tensor[edge.tensor].size_bytes
    at = {str(state): number for number, state in enumerate(edge.table.states)}
    assert moment.passing[at["(P)"], at["(B)"]] == whole + whole
    assert moment.passing[at["(P)"], at["(S0)"]] == whole + whole // 4
    assert moment.passing[at["(P)"], at["(S1)"]] == whole + whole // 4 + whole  # packed for NCCL
    assert moment.passing[at["(S0)"], at["(S0)"]] == 0


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_the_bound_is_that_of_both_moments_at_the_price_of_a_byte(mesh: str) -> None:
    """No assignment is below it if what it holds beyond the limit is paid for; some are near it."""
    found, limit, result = searched(mesh)
    byte_s = found.notes[KNOWN].best(limit)
    held = [a for make in BASELINES.values() if (a := make(found)) is not None]
    drawn = [random_assignment(found, seed) for seed in range(6)]
    seen = [point.assignment for point in found.notes[KNOWN].points]
    moment = crest_of(found, held[0])

    def priced_s(assignment: tuple[int, ...]) -> float:
        there = moment.memory_bytes(found, assignment), found.memory_bytes(assignment)
        more = crest.PART * there[0] + (1 - crest.PART) * there[1] - limit
        return found.cost_s(assignment) + byte_s * more

    relieved = [moment.relieved(found, a) for a in (*held, *seen, result.assignment)]
    least_s = min(map(priced_s, (result.assignment, *held, *drawn, *seen, *relieved)))
    bound_s = moment.bound_s(found, limit)
    assert 0.9 * least_s < bound_s <= least_s * (1 + 1e-9)


def test_what_passes_has_its_part_of_the_price() -> None:
    """A gradient that takes as much in whatever states raises the bound by what that is worth."""
    found, limit, _ = searched("4")
    moment = crest_of(found, baseline(found, "data parallel"))
    nothing, alike = (replace(moment, passing=moment.passing * 0 + n) for n in (0, 10**5))
    more_s = alike.bound_s(found, limit) - nothing.bound_s(found, limit)
    worth_s = crest.PART * found.notes[KNOWN].best(limit) * 10**5
    assert more_s == pytest.approx(worth_s, rel=0.02)


def test_with_streams_of_their_own_there_is_no_such_moment() -> None:
    """There ops run in another order, and the memory of nodes is counted in another way."""
    found = builder.build(DEEP, Mesh.parse("4"), cluster())
    held = baseline(found, "data parallel")
    limit = (3 * found.memory_bytes(held) + 7 * found.least_memory_bytes) // 10
    exact.search(found, memory_bytes=limit, budget=30, stop_gap=0.2)
    assert KNOWN in found.notes
    assert crest.moment(found, held) is None


def test_what_is_not_there_any_more_waits_as_is_cheapest() -> None:
    found, _, _ = searched("2x2")
    start = made_again(found, baseline(found, "ZeRO 2"))
    moment = crest_of(found, start)
    other = moment.relieved(found, start)
    (index,) = [i for i, pair in enumerate(zip(start, other, strict=True)) if pair[0] != pair[1]]
    assert found.nodes[index].kind == KEPT
    assert found.cost_s(other) < found.cost_s(start)
    assert moment.memory_bytes(found, other) == moment.memory_bytes(found, start)
