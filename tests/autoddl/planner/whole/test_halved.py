"""Plans of two halves of the batch in turn: when they are made, what they say, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl import optimize
from autoddl.api import Plan, load
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.planner.choose import WHOLE_BATCH
from autoddl.planner.race import WORTH_OF_HALVES
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.halves import HALF, SUM
from autoddl.search.budget import Budget
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer

# Each pair of layers sums up what the next one reads, so one half can compute while the other sends.
LAYERS = mlp(batch=512, sizes=(512, 2048, 512, 2048, 512), bias=False, optimizer="sgd")


def plan(program: Program = LAYERS, profile: Profile | None = None, **options: Any) -> Plan:
    options = {"mesh": "[node 2]", "pipeline": 1, "budget": Budget(evaluations=2e3), **options}
    return optimize(program, profile=profile or cluster(), **options)


def test_halves_are_taken_where_they_are_worth_it() -> None:
    kept = 0
    for search in ("exact", "data parallel", "Megatron"):
        whole, halves, auto = (plan(search=search, duplex=d) for d in (False, True, "auto"))
        assert (whole.duplex, halves.duplex) == (False, True)
        gained = halves.estimate.step_s < (1 - WORTH_OF_HALVES) * whole.estimate.step_s
        assert auto.duplex == gained
        assert auto.estimate.step_s == pytest.approx((halves if gained else whole).estimate.step_s)
        if gained:
            assert auto.baselines[0] == replace(whole.estimate, name=WHOLE_BATCH)
        kept += gained
    assert 0 < kept < 3


def test_a_plan_of_halves_says_so_and_is_kept(tmp_path: Path) -> None:
    found = plan(transformer(1), mesh="4", duplex=True)
    found.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == found
    assert "two halves in turn" in str(found)
    assert "two halves in turn" not in str(plan())
    found.trace(tmp_path / "trace.json", profile=cluster())
    trace = (tmp_path / "trace.json").read_text()
    assert HALF in trace and SUM in trace


def test_gradients_are_synchronised_once() -> None:
    found = plan(search="data parallel", duplex=True)
    summed = [r.tensor for r in found.redistributions if "matmul" in r.tensor]
    assert summed and all(tensor.startswith(SUM) for tensor in summed)


def test_memory_is_that_of_both_halves() -> None:
    whole, halves = (plan(search="data parallel", duplex=d) for d in (False, True))
    assert halves.estimate.memory_bytes >= 0.7 * whole.estimate.memory_bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"duplex": 1.5}, ("duplex: got 1.5", "'auto', True and False")),
        ({"duplex": True, "objective": "sum"}, ("objective='sum'", "duplex=False")),
        ({"duplex": True, "search": "hidup"}, ("search='hidup'", "duplex=False")),
        ({"duplex": True, "pipeline": 2}, ("pipeline=2", "duplex=False")),
        ({"duplex": True, "micro_batches": 2}, ("micro_batches=2", "duplex=False")),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(words, **options)


def test_nothing_overlaps_on_the_compute_stream() -> None:
    words = "compute_stream=True", "nothing overlaps", "duplex=False"
    refused(words, replace(LAYERS, device="cuda"), duplex=True, compute_stream=True)


def test_a_batch_that_has_no_halves() -> None:
    words = "input.0.0", "(7, 512)", "2 micro-batches"
    refused(words, mlp(7, (512, 28)), mesh="7", duplex=True)
    assert not plan(mlp(7, (512, 28)), mesh="7", duplex="auto").duplex


def test_halves_that_no_axis_divides_stay_whole() -> None:
    found = plan(mlp(4, (512, 28)), mesh="4", duplex=True)
    assert found.duplex and "the batch of 2 samples stays whole over [gpu 4]" in str(found)


def refused(words: tuple[str, ...], program: Program = LAYERS, **options: Any) -> None:
    with pytest.raises(AutoDDLError) as caught:
        plan(program, **options)
    said = str(caught.value)
    assert "\n" not in said and said.startswith("duplex: ")
    assert all(word in said for word in words), said


def test_where_halves_are_left_out_that_is_said() -> None:
    with pytest.warns(UserWarning, match="duplex: 'auto' is off with objective='sum'"):
        assert not plan(duplex="auto", objective="sum").duplex


def test_scripts_have_no_halves(tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match=r"codegen: a script has no halves .*duplex=False"):
        plan(duplex=True).codegen(tmp_path / "script.py")
