"""Candidates with strides: by hand, beside the NumPy oracle, and never to a plan's disadvantage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autoddl
from autoddl.engine import engines
from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle import simulated_ops
from autoddl.sbp.program import Program
from autoddl.sbp.rules.registry import OpView, find
from autoddl.sbp.state import B, S
from autoddl.search.budget import Budget
from autoddl.search.network.builder import build
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.network.strided import strided_cuts
from autoddl.search.network.widened import widened
from autoddl.search.rivals.random_sampling import random_assignment
from tests.support.clusters import cluster
from tests.support.programs import transformer

WHOLE = engines.model(None)
THREE_FIRST = transformer(batch=1, length=3, width=16, heads=4, three_first=True)
QKV = "model.blocks.0.attention.qkv"


def network(program: Program, mesh: str, *, strides: bool) -> CostNetwork:
    return build(program, Mesh.parse(mesh), cluster(), WHOLE, strides=strides)


def test_only_what_was_met_is_a_candidate() -> None:
    """Heads are 8 of each 16 columns over two devices, and sizes 2 of each 4; nothing else is new."""
    program = THREE_FIRST
    found = strided_cuts(program, Mesh.parse("2"), WHOLE.limits)
    cuts = {
        tensor.name: found.cuts[number][0]
        for tensor, number in zip(program.tensors, found.of_tensor.tolist(), strict=True)
        if number
    }
    assert set(cuts[f"{QKV}.weight"]) == {S(0, 8), S(0, 2)} == set(cuts[f"{QKV}.bias"])
    assert set(cuts["model.blocks.0.attention.proj.weight"]) == {S(1, 2)}
    modules = {
        name.partition(".")[2].rpartition(".")[0] for name in cuts if name in program.parameter
    }
    assert modules == {"blocks.0.attention.qkv", "blocks.0.attention.proj"}


def test_an_engine_without_strides_has_none() -> None:
    assert strided_cuts(THREE_FIRST, Mesh.parse("2"), ONEFLOW.limits).cuts == ((),)
    assert len(strided_cuts(THREE_FIRST, Mesh.parse("2"), WHOLE.limits).cuts) > 1


@pytest.mark.parametrize("mesh", ["4", "2x4"])
def test_ops_have_signatures_of_their_own_operands(mesh: str) -> None:
    """Though those of other types may have equal states."""
    program = transformer(batch=4, length=4, width=16, heads=4, three_first=True)
    found = strided_cuts(program, Mesh.parse(mesh), WHOLE.limits)
    assert (
        len({op.type for op, which in zip(program.ops, found.of_op.tolist(), strict=True) if which})
        > 5
    )
    for op, which in zip(program.ops, found.of_op.tolist(), strict=True):
        for signature in (s for of_axis in found.signatures[which] for s in of_axis):
            assert set(signature) == dict(op.operands).keys()


@pytest.mark.parametrize("mesh", ["2", "2x2"])
def test_candidates_are_right_on_simulated_ranks(mesh: str) -> None:
    problem, rng, kinds = network(THREE_FIRST, mesh, strides=True), np.random.default_rng(0), set()
    program, checked = THREE_FIRST, 0
    for variable in problem.variables.where("op").tolist():
        op = program.ops[problem.variables.op[variable]]
        kind = int(problem.variables.domain[variable])
        if kind in kinds or find(op.type) is None:
            continue
        kinds.add(kind)
        view = OpView.of(op, program.shapes(op))
        for choice in problem.variables.of(variable).choices:
            if any(sbp.stride is not None for state in choice.values() for sbp in state):
                fault = simulated_ops.check_signature(view, choice, problem.mesh.shape, rng)
                assert fault is None, fault
                checked += 1
    assert checked >= 30


def test_all_that_was_possible_still_is_and_costs_the_same() -> None:
    narrow, wide = (network(THREE_FIRST, "2x2", strides=strides) for strides in (False, True))
    assert wide.variables.sizes.sum() > narrow.variables.sizes.sum()
    rng = np.random.default_rng(0)
    for _ in range(5):
        some = random_assignment(narrow, rng)
        assert wide.costs(widened(some, narrow, wide)) == pytest.approx(narrow.costs(some))


@pytest.mark.parametrize(
    "program", [THREE_FIRST, transformer(batch=1, length=3, width=16, heads=4)]
)
@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_no_plan_is_dearer_with_strides(program: Program, mesh: str) -> None:
    without, plan = (
        autoddl.optimize(
            program, mesh=mesh, profile=cluster(overhead_s=0.0), engine=None, objective="sum",
            strides=strides, budget=Budget(evaluations=2_000),
        )
        for strides in (False, "auto")
    )  # fmt: skip
    sums = [p.estimate.compute_s + p.estimate.communication_s for p in (without, plan)]
    assert sums[1] <= sums[0]


def test_heads_behind_the_three_cost_no_more_than_before() -> None:
    """With strides the projection is cut by heads wherever these lie in it."""
    plans = [
        autoddl.optimize(
            transformer(batch=1, length=3, width=64, heads=4, three_first=three_first), mesh="4",
            profile=cluster(overhead_s=0.0), engine=None, objective="communication",
            strides=strides, budget=Budget(evaluations=2_000),
        )
        for three_first, strides in ((False, False), (True, False), (True, "auto"))
    ]  # fmt: skip
    first, without, plan = (p.estimate.communication_s for p in plans)
    assert without > 1.05 * first and plan <= 1.001 * first
    assert B not in plans[2].variables[f"{QKV}.weight"]


def test_stages_with_strides_are_not_written(tmp_path: Path) -> None:
    plan = autoddl.optimize(
        transformer(batch=4, length=3, width=16, heads=4, three_first=True), mesh="2", pipeline=1,
        micro_batches=2, profile=cluster(), engine="script", pin={f"{QKV}.weight": "S(0, 8)"},
    )  # fmt: skip
    assert plan.parts[0].layout.has_strides
    with pytest.raises(AutoDDLError, match="strides are not written in stages"):
        plan.codegen(tmp_path / "script.py")


def test_strides_that_an_engine_lacks_are_refused() -> None:
    with pytest.raises(AutoDDLError, match=r"strides: got True with OneFlow.*allowed"):
        autoddl.optimize(THREE_FIRST, mesh="2", profile=cluster(), strides=True)


def test_pins_may_have_strides_that_divide() -> None:
    pinned = {f"{QKV}.weight": "S(0, 8)"}
    plan = autoddl.optimize(THREE_FIRST, mesh="2", profile=cluster(), engine=None, pin=pinned)
    assert plan.variables[f"{QKV}.weight"] == (S(0, 8),)
    other = {f"{QKV}.weight": "S(0, 3)"}  # which no contraction meets
    plan = autoddl.optimize(THREE_FIRST, mesh="2", profile=cluster(), engine=None, pin=other)
    assert plan.variables[f"{QKV}.weight"] == (S(0, 3),)


@pytest.mark.parametrize(
    ("state", "engine", "words"),
    [
        ("S(0, 5)", None, r"pin of .*qkv.weight: .* in turns of 5; the stride must divide 24"),
        ("S(0, 8)", "oneflow", r"S\(0, 8\) in \(S\(0, 8\)\); .* for this engine, without strides"),
    ],
)
def test_bad_strides_get_one_line(state: str, engine: str | None, words: str) -> None:
    with pytest.raises(AutoDDLError, match=words) as error:
        autoddl.optimize(
            THREE_FIRST, mesh="2", profile=cluster(), engine=engine, pin={f"{QKV}.weight": state}
        )
    assert "\n" not in str(error.value)
