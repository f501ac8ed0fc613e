"""Shares for devices of several kinds: vectors by hand and brute force, and plans that have them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.planner.uneven.share_vectors import MOST_UNITS, share_vectors
from autoddl.sbp.program import ParameterGroup
from autoddl.search.budget import Budget
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp

SOME = Budget(evaluations=2_000)
PROFILE = of_two_kinds(cluster(), 3.0)
WIDE = mlp(64, (256, 512, 256))


def ops(*each: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Seconds of ops on one device: of its launch, and of the rest."""
    return np.array(each).T


def test_vectors_by_hand() -> None:
    """Three times as fast: three quarters of the work, 0.75 s of 1 s."""
    one, three = ops((0.0, 1.0)), ops((0.0, 3.0))
    first, *_ = share_vectors({"fast": 1, "slow": 1}, {"fast": one, "slow": three})
    assert first == {"fast": 3, "slow": 1}
    two, *_ = share_vectors({"fast": 1, "slow": 2}, {"fast": one, "slow": 2 * one})
    assert two == {"fast": 2, "slow": 1}
    assert share_vectors({"a": 2, "b": 2}, {"a": one, "b": one}) == []


def test_launches_count() -> None:
    """0.1 + 0.8 and 0.3 + 3 / 5 s; small ops wait for the slow launch under any shares."""
    fast, slow = ops((0.1, 1.0)), ops((0.3, 3.0))
    first, *_ = share_vectors({"fast": 1, "slow": 1}, {"fast": fast, "slow": slow})
    assert first == {"fast": 4, "slow": 1}
    small = {"fast": ops((0.0, 1.0), (0.1, 0.0)), "slow": ops((0.0, 3.0), (0.3, 0.0))}
    first, *_ = share_vectors({"fast": 1, "slow": 1}, small)
    assert first == {"fast": 3, "slow": 1}


@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 3), (1, 1, 1)])
def test_the_first_vector_is_the_best_of_all(counts: tuple[int, ...]) -> None:
    seconds = [[(0.1, 1), (0, 0.2)], [(0.2, 2.7), (0, 0.2)], [(0.7, 5.3), (0, 0.3)]][: len(counts)]
    kinds = dict(zip("abc", counts, strict=False))
    found = share_vectors(kinds, dict(zip("abc", (ops(*each) for each in seconds), strict=False)))

    def takes(units: tuple[int, ...]) -> Fraction:
        total = sum(n * u for n, u in zip(counts, units, strict=True))
        return sum(
            max(
                Fraction(of[op][0]) + Fraction(of[op][1]) * u / total
                for of, u in zip(seconds, units, strict=True)
            )
            for op in range(2)
        )

    every = [
        units
        for units in itertools.product(range(1, MOST_UNITS + 1), repeat=len(counts))
        if sum(n * u for n, u in zip(counts, units, strict=True)) <= MOST_UNITS
    ]
    steps = [float(takes(tuple(vector.values()))) for vector in found]
    assert steps[0] == pytest.approx(float(min(map(takes, every))))
    assert steps == pytest.approx(sorted(steps)) and steps[-1] < takes((1,) * len(counts))


def test_a_plan_over_shares_is_shorter_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    asked = {"cluster": "1*fast + 1*slow", "profile": PROFILE, "engine": None, "budget": SOME}
    even = autoddl.optimize(WIDE, **asked, pipeline=1, shares=False)
    plan = autoddl.optimize(WIDE, **asked, pipeline=1)
    assert even.mesh.cuts == even.mesh.shape
    assert plan.mesh.cuts != plan.mesh.shape
    assert plan.estimate.step_s < even.estimate.step_s
    assert {each.mesh for each in plan.search.outcomes} >= {even.mesh.describe()}
    plan.save(tmp_path / "plan.json")
    again = autoddl.load(tmp_path / "plan.json")
    assert again == plan and again.mesh == plan.mesh
    assert any(state[0].is_split for state in again.variables.values())


def test_micro_batches_are_cut_by_shares_too() -> None:
    asked = {"cluster": "1*fast + 1*slow", "profile": PROFILE, "engine": "script", "budget": SOME}
    plan, even = (
        autoddl.optimize(WIDE, **asked, pipeline=1, micro_batches=4, shares=shares)
        for shares in ("auto", False)
    )
    assert (len(plan.parts), plan.micro_batches) == (1, 4)
    assert plan.mesh.cuts != plan.mesh.shape and even.mesh.cuts == even.mesh.shape
    assert plan.estimate.step_s < even.estimate.step_s


def test_stages_have_shares() -> None:
    """Three fast devices and a slow one, two stages: 2 : 1 1/3 is nearer to half than 2 : 2 · 1/3."""
    program = mlp(8192, (2048, 2048, 2048, 2048))
    asked = {"cluster": "3*fast + 1*slow", "profile": PROFILE, "engine": "script", "budget": SOME}
    plan, even = (
        autoddl.optimize(program, **asked, pipeline=2, micro_batches=8, shares=shares)
        for shares in ("auto", False)
    )
    assert [str(part.mesh) for part in plan.parts] == ["2", "2:3/1"]
    assert plan.parts[1].ranks == (2, 3), "the share of 3 is for the fast one"
    assert plan.estimate.step_s < 0.9 * even.estimate.step_s


def test_nodes_of_kinds_in_turn_share_no_stage() -> None:
    """Shares are by place, and places by rank: pools are joined one behind the other."""
    found = [
        autoddl.optimize(
            mlp(8192, (2048, 2048, 2048, 2048)), cluster=text, profile=PROFILE, engine="script",
            budget=SOME, pipeline=2, micro_batches=8,
        )
        for text in ("2*fast + 1*slow + 1*fast", "1*slow + 3*fast")
    ]  # fmt: skip
    assert [[str(part.mesh) for part in plan.parts] for plan in found] == [
        ["2", "2"],
        ["2", "2:1/3"],
    ]


def test_scripts_have_no_stages_where_gradients_are_clipped() -> None:
    names = tuple(parameter.tensor for parameter in WIDE.parameters)
    clipped = replace(WIDE, groups=(ParameterGroup(names, 0.1, clip=(1.0, 2.0)),))
    asked = {"cluster": "3*fast + 1*slow", "profile": PROFILE, "budget": SOME, "engine": "script"}
    plan = autoddl.optimize(clipped, **asked, micro_batches=8, pipeline="auto")
    assert {each.stages for each in plan.search.outcomes} <= {0, 1} and len(plan.parts) == 1
    with pytest.raises(AutoDDLError, match=r"got 2, but gradients are clipped by .* is 1"):
        autoddl.optimize(clipped, **asked, micro_batches=8, pipeline=2)


def test_haps_search_makes_a_plan_of_what_alternation_ends_at() -> None:
    asked = {"cluster": "1*fast + 1*slow", "profile": PROFILE, "engine": None, "budget": SOME}
    plan = autoddl.optimize(WIDE, **asked, search="hap")
    assert plan.mesh.cuts != plan.mesh.shape and len(plan.parts) == 1
    assert {each.mesh for each in plan.search.outcomes} <= {plan.mesh.describe()}
    assert plan.estimate.step_s >= autoddl.optimize(WIDE, **asked).estimate.step_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "2x2"}, "search: got 'hap' on mesh 2x2; it gives shares of one axis"),
        ({"mesh": "2"}, "search: got 'hap' for devices of one kind;"),
        ({"cluster": "1*fastx2 + 1*slowx2"}, "search: got 'hap' on cluster 1.fastx2 . 1.slowx2;"),
        (
            {"cluster": "1*fast + 1*slow", "shares": False},
            "search: got 'hap' with shares=False, where",
        ),
        (
            {"cluster": "1*fast + 1*slow", "engine": "oneflow"},
            "search: got 'hap' with engine='oneflow', where OneFlow cuts evenly; allowed",
        ),
    ],
)
def test_haps_search_needs_one_axis_and_shares(options: dict[str, object], message: str) -> None:
    given = {"engine": None, "profile": PROFILE if "cluster" in options else cluster(), **options}
    with pytest.raises(AutoDDLError, match=message) as error:
        autoddl.optimize(WIDE, search="hap", budget=SOME, **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [{"engine": "oneflow"}, {"engine": None, "shares": False}],
    ids=["OneFlow cuts evenly", "not wanted"],
)
def test_no_shares(options: dict[str, object]) -> None:
    plan = autoddl.optimize(
        WIDE, cluster="1*fast + 1*slow", profile=PROFILE, budget=SOME, pipeline=1, **options
    )
    assert plan.mesh.cuts == plan.mesh.shape
    assert not any(":" in each.mesh for each in plan.search.outcomes)


def test_shares_that_divide_nothing_are_not_tried() -> None:
    odd = mlp(17, (17, 17))
    plan = autoddl.optimize(
        odd, cluster="1*fast + 1*slow", profile=PROFILE, engine=None, pipeline=1, budget=SOME
    )
    assert not any(":" in each.mesh for each in plan.search.outcomes)


@pytest.mark.parametrize("value", [True, "yes", 3, "3/1"])
def test_wrong_words(value: object) -> None:
    with pytest.raises(AutoDDLError, match=r"shares: got .*; allowed are 'auto' and False"):
        autoddl.optimize(WIDE, mesh="2", profile=cluster(), shares=value)
