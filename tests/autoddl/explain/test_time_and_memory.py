"""The Pareto front against its definition; what is planned again fits into what it was given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoddl.explain.reopened import reopened
from autoddl.explain.time_and_memory import LIMITS, ParetoPoint, pareto, with_front
from tests.autoddl.explain.plans import planned, profile_for

POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(POINTS)
def test_nothing_beats_what_is_on_the_front(pairs: list[tuple[int, int]]) -> None:
    found = with_front([ParetoPoint("", float(s), b) for s, b in pairs])
    front = {(p.step_s, p.memory_bytes) for p in found if p.front}
    better = {
        (s, b) for s, b in pairs
        if not any((t <= s and c <= b) and (t, c) != (s, b) for t, c in pairs)
    }  # fmt: skip
    assert front == better
    assert sum(p.front for p in found) == len(front)


def test_known_are_plan_baselines_and_what_is_planned_for_less_memory() -> None:
    plan = planned("mlp")
    points = pareto(plan, reopened(plan, profile_for("mlp")))
    rows = [plan.estimate, *plan.baselines]
    known, again = points[: len(rows)], points[len(rows) :]
    assert [(p.name, p.step_s, p.memory_bytes) for p in known] == [
        (row.name, row.step_s, row.memory_bytes) for row in rows
    ]
    assert again, "of an MLP some plan takes less memory"
    for share, point in zip(LIMITS, again, strict=False):
        assert point.memory_bytes <= share * plan.estimate.memory_bytes
        assert point.step_s >= plan.estimate.step_s * (1 - 1e-9)
    assert pareto(plan)[0].name == "plan" and len(pareto(plan)) == len(rows)
