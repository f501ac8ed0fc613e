"""The race: which candidates are searched, for how long, and which wins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.planner.candidate_plans import Candidate
from autoddl.planner.race import IMPOSSIBLE, NO_ROOM, PRUNED, Contender, Race, Solution
from autoddl.sbp.mesh import Mesh
from autoddl.search.budget import MACHINE, Allowance, Budget


@dataclass
class Runs:
    """What made-up trials were searched, with how many seconds, and how roughly."""

    order: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rough: list[bool] = field(default_factory=list)


@dataclass
class Made:
    """A made-up trial: a bound below 0 is an error, a cost of None too; a cost below 0 does not fit."""

    runs: Runs
    name: str
    bound_s: float | None
    cost_s: float | None
    stages: int = 1
    stream: bool = False
    settled: bool = False
    slack: float = 0.0
    share: float = 0.0
    least_s: float = 0.0
    needed_bytes: int | None = None
    seconds: float = 0.0  # that the race has given it

    def __post_init__(self) -> None:
        sizes = self.name.replace("x", "][gpu ")
        self.candidate = Candidate(
            self.stages, 1, Mesh.parse(f"[gpu {sizes}]"), ONEFLOW.streams[self.stream]
        )

    def turn(self) -> tuple[float, ...]:
        if (self.bound_s or 0.0) < 0:
            raise InfeasibleError(f"nothing fits on {self.name}")
        return (self.bound_s or 0.0,)

    def search(
        self, allowance: Allowance, *, rough: bool, below_s: float = math.inf
    ) -> Iterator[float | Solution]:
        yield self.bound_s or 0.0
        self.runs.order.append(self.name)
        self.runs.seconds.append(allowance.seconds)
        self.runs.rough.append(rough)
        allowance.clock.count((self.cost_s or 0.0) * 1e4)  # of a clock that counts, so many seconds
        if self.cost_s is None:
            raise AutoDDLError(f"nothing found on {self.name}")
        if self.cost_s < 0:
            self.needed_bytes = 7
            return
        row: Any = SimpleNamespace(step_s=self.cost_s)
        result: Any = SimpleNamespace(lower_bound_s=self.bound_s)
        found: Any = SimpleNamespace(
            estimate=lambda _: row, stages=self.stages, meshes=[self.candidate.mesh]
        )
        slack = self.slack if self.runs.rough[-1] else 0.0
        yield Solution(
            self.candidate, found, result, self.cost_s, self.cost_s,
            slack=slack, settled=self.settled,
        )  # fmt: skip


def run(trials: list[Made], budget_s: float = 60.0, *, stop_gap: float = 0.0, **known: Any) -> Race:
    race, allowance = Race(**known), Allowance.of(MACHINE, budget_s)
    race.run(cast(list[Contender], trials), allowance, stop_gap=stop_gap)
    return race


def notes(found: Race) -> dict[str, str]:
    return {str(one.mesh): outcome.note for one, outcome in found.outcomes.items()}


def best(found: Race) -> str:
    assert found.best is not None
    return str(found.best.candidate.mesh)


def test_low_bounds_go_first_and_high_ones_are_left_out() -> None:
    runs = Runs()
    figures = {"4": (5.0, 6.0), "2x2": (1.0, 4.0), "1x4": (2.0, 3.0), "4x1": (3.0, 3.5)}
    found = run([Made(runs, name, *pair) for name, pair in figures.items()])
    assert runs.order == ["2x2", "1x4"]  # 3.0 and 5.0 can't be below 3.0
    assert best(found) == "1x4"
    assert notes(found) == {"2x2": "", "1x4": "", "4x1": PRUNED, "4": PRUNED}


def test_where_two_are_wanted_the_second_best_leaves_out_the_others() -> None:
    runs = Runs()
    figures = {"4": (3.8, 6.0), "2x2": (1.0, 4.0), "1x4": (2.0, 3.0), "4x1": (3.0, 3.5)}
    found = run([Made(runs, name, *pair) for name, pair in figures.items()], keep=2)
    assert runs.order == ["2x2", "1x4", "4x1"]  # 3.0 is below 4.0, 3.8 is not below 3.5
    assert best(found) == "1x4" and notes(found)["4"] == PRUNED
    assert [solution.judged_s for solution in found.found.values()] == [4.0, 3.0, 3.5]


@pytest.mark.parametrize(
    ("flat", "split", "wins"),
    [(4.0, 3.999, "4"), (4.0, 3.9, "2x2"), (3.999, 4.0, "4"), (4.003, 4.0, "4"), (4.1, 4.0, "2x2")],
)
def test_more_axes_have_to_be_worth_it(flat: float, split: float, wins: str) -> None:
    """Whichever mesh is searched first: 0.1 % is less than two calibrations differ by."""
    for bounds in ((1.0, 2.0), (2.0, 1.0)):
        runs = Runs()
        found = run([Made(runs, "4", bounds[0], flat), Made(runs, "2x2", bounds[1], split)])
        assert best(found) == wins


def test_candidates_share_the_seconds() -> None:
    runs = Runs()
    run([Made(runs, name, 1.0, 6.0) for name in ("4", "2x2", "1x4")], 30.0)
    assert runs.seconds == pytest.approx([10.0, 15.0, 30.0], abs=1.0)
    runs = Runs()
    run([Made(runs, name, 1.0, 6.0, share=1 / 3) for name in ("8", "4", "2", "1", "2x2")], 30.0)
    assert runs.seconds[0] == pytest.approx(10.0, abs=1.0)
    assert runs.rough == [True] * 4 + [False]


def test_outcomes_say_how_many_seconds_each_had() -> None:
    figures, race = {"4": (5.0, 6.0), "2x2": (1.0, 4.0), "1x4": (2.0, 3.0)}, Race()
    trials = cast(list[Contender], [Made(Runs(), n, *pair) for n, pair in figures.items()])
    race.run(trials, Budget(evaluations=1e6).begin())
    had = {str(one.mesh): outcome.seconds for one, outcome in race.outcomes.items()}
    assert had == {"2x2": 4.0, "1x4": 3.0, "4": 0.0}
    again = Race()
    again.run(
        cast(
            list[Contender],
            [
                Made(Runs(), "4", 1.0, 5.0, stages=2, slack=0.1),
                Made(Runs(), "2", 6.0, 7.0, stages=2),
            ],
        ),
        Budget(evaluations=1e6).begin(),
    )
    assert [outcome.seconds for outcome in again.outcomes.values()] == [10.0, 0.0]


def test_streams_of_a_mesh_count_once_and_end_when_settled() -> None:
    for settled in (False, True):
        runs = Runs()
        trials = [
            Made(runs, "4", 1.0, 6.0, settled=settled),
            Made(runs, "4", 1.0, 5.0, stream=True, least_s=20.0),
        ]
        found = run(trials, 30.0)
        assert found.best is not None
        assert found.best.candidate.way.compute_stream == (not settled)
        assert runs.seconds == pytest.approx([30.0] if settled else [30.0, 30.0], abs=1.0)


def test_candidates_without_a_plan_are_passed_over() -> None:
    runs = Runs()
    found = run(
        [Made(runs, "4", -1.0, None), Made(runs, "2x2", 1.0, None), Made(runs, "1x4", 1, 6)]
    )
    assert notes(found) == {"4": IMPOSSIBLE, "2x2": IMPOSSIBLE, "1x4": ""}
    none = run([Made(runs, "4", -1.0, None), Made(runs, "2x2", 1.0, None)])
    assert none.best is None
    assert str(none.failure()) == "nothing fits on 4"


def test_what_does_not_fit_is_no_solution() -> None:
    found = run([Made(Runs(), "4", 1.0, -1.0, stages=2)])
    assert found.best is None and found.failure() is None
    assert notes(found) == {"4": NO_ROOM}
    assert [outcome.memory_bytes for outcome in found.outcomes.values()] == [7]


def test_the_winner_is_searched_once_more_where_that_was_rough() -> None:
    runs = Runs()
    trials = [
        Made(runs, "4", 1.0, 5.0, stages=2, slack=0.01),
        Made(runs, "2", 2.0, 6.0, stages=2, slack=0.01),
    ]
    found = run(trials)
    assert runs.order == ["4", "2", "4"] and runs.rough == [True, False, False]
    assert found.best is not None and found.best.slack == 0.0
    runs.order.clear()
    run(trials, stop_gap=0.05)
    assert runs.order == ["4", "2"]


def test_without_time_others_are_left_once_there_is_a_plan() -> None:
    runs = Runs()
    known = run([Made(Runs(), "8", 1.0, 9.0)]).best
    trials = [Made(runs, n, 1.0, 5.0, stages=2) for n in ("4", "2")]
    found = run(trials, 0.0, best=known)
    assert runs.order == [] and found.untried == 2 and found.best is known
    must = run([Made(runs, "4", 1.0, 5.0), Made(runs, "2", 2.0, 4.0)], 0.0)
    assert runs.order == ["4"] and must.untried == 1 and best(must) == "4"
