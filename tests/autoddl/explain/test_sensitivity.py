"""Where another plan becomes the best: against a walk in small steps, and a closed form."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autoddl.explain.reopened import reopened
from autoddl.explain.sensitivity import (
    GRID,
    PLAN,
    Flip,
    _sensitivity,
    known_plans,
    memory_flips,
    sensitivities,
    with_devices,
    with_links,
)
from autoddl.explain.waits import COMPUTE
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.search.baselines import assignments
from tests.autoddl.explain.plans import planned, profile_for


@cache
def opened(name: str):
    return reopened(planned(name), profile_for(name))


def test_all_of_one_resource_takes_so_many_times_less() -> None:
    found, profile, level = opened("large"), profile_for("large"), "node"
    sources = set[str]()
    for one in known_plans(found).values():
        before, links, ops = (
            StepPrices(found.problem.program, found.problem.mesh, known).step(one.layout)
            for known in (profile, with_links(profile, level, 4.0), with_devices(profile, 4.0))
        )
        for side, (of_links, of_ops) in zip((links, ops), ((4.0, 1.0), (1.0, 4.0)), strict=True):
            for was, now in zip(before.ops.rows(), side.ops.rows(), strict=True):
                assert now.seconds == pytest.approx(was.seconds / of_ops)
            for was, now in zip(before.boxings.rows(), side.boxings.rows(), strict=True):
                over = was.source.split()[1:2]
                launch_s = profile.op_overhead_s if over else was.seconds
                sent = (was.seconds - launch_s) / (of_links if over == [level] else 1.0)
                assert now.seconds == pytest.approx(launch_s / of_ops + sent)
                sources.update(over)
    assert sources == {"node", "gpu"}


def scaled_steps(name: str, resource: str, factor: float) -> dict[str, float]:
    """Return the steps of the plan and its rivals, priced here."""
    found, profile = opened(name), profile_for(name)
    scaled = (
        with_devices(profile, factor)
        if resource == COMPUTE
        else with_links(profile, resource.rsplit(" ", 1)[1], factor)
    )
    problem, known = found.problem, known_plans(opened(name))
    assert set(known) == {PLAN, *assignments(problem)}
    return {
        n: StepTimeline(
            StepPrices(problem.program, problem.mesh, scaled, problem.setting.queue),
            one.layout, overlaps=not problem.compute_stream,
        ).prediction.step_s
        for n, one in known.items()
    }  # fmt: skip


def check(name: str, resource: str, flip: Flip | None, up: bool) -> None:
    """Walk from today's rate: the plan is the best up to the factor, and there another one is."""
    for factor in (f if up else 1 / f for f in GRID):
        if flip is not None and (factor >= flip.factor if up else factor <= flip.factor):
            break
        steps = scaled_steps(name, resource, factor)
        assert steps[PLAN] <= min(steps.values()) * (1 + 1e-6)
    if flip is not None:
        steps = scaled_steps(name, resource, flip.factor)
        assert (min(steps, key=steps.__getitem__), steps[PLAN]) == (flip.best, flip.plan_s)
        assert steps[flip.best] == flip.best_s < flip.plan_s
        inside = scaled_steps(name, resource, flip.factor / 1.01 if up else flip.factor * 1.01)
        assert inside[PLAN] <= min(inside.values()) * (1 + 1e-6)


@pytest.mark.parametrize("name", ["mlp", "large", "cuda"])
def test_flips_are_where_a_walk_finds_them(name: str) -> None:
    found = opened(name)
    told = sensitivities(found, known_plans(found))
    assert [each.resource for each in told] == [
        COMPUTE, "links of level node", "links of level gpu",
    ]  # fmt: skip
    for each in told:
        check(name, each.resource, each.slower, False)
        check(name, each.resource, each.faster, True)
    assert name == "mlp" or any(each.slower or each.faster for each in told)


def test_bisection_against_a_closed_form() -> None:
    """2 + 10/f for the plan and 9 + 2/f for the other: as long at f = 8/7, where the plan gets ahead."""

    def steps(factor, names=()):
        known = {PLAN: 9 + 2 / factor, "other": 2 + 10 / factor}
        return {name: known[name] for name in names or known}

    told = _sensitivity("links", steps)
    assert told.faster is not None and told.faster.best == "other"
    assert told.faster.factor == pytest.approx(8 / 7, rel=0.01) and told.faster.factor >= 8 / 7
    assert told.slower is None


def test_memory() -> None:
    found = opened("cuda")
    known = known_plans(found)
    plan = known.pop(PLAN)
    less, *more = memory_flips(found, {PLAN: plan, **known})
    assert less.limit_bytes == plan.memory_bytes and not less.more
    fits = {n: o.step_s for n, o in known.items() if o.memory_bytes < plan.memory_bytes}
    assert less.best == min(fits, key=fits.__getitem__, default=None)
    assert not more  # all of them fit, and none is faster
    plan = known.pop("Megatron")
    limited = replace(found, request=replace(found.request, limit_bytes=plan.memory_bytes))
    faster = {
        n: o for n, o in known.items()
        if o.memory_bytes > plan.memory_bytes and o.step_s < plan.step_s
    }  # fmt: skip
    flips = memory_flips(limited, {PLAN: plan, **known})
    assert [each.best for each in flips[1:]] == [
        min(faster, key=lambda n: faster[n].memory_bytes) for _ in faster
    ][:1]
