"""Differences between plans: none of a plan with itself, the same both ways, just what was changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.compare.plan_diff import PlanDiff
from autoddl.errors import AutoDDLError
from autoddl.report.comparison_text import SAME
from autoddl.sbp.rewrites.micro_batch import with_batch
from tests.autoddl.explain.plans import PROGRAMS, planned
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp, transformer

STAGED = {"mesh": "2", "pipeline": 2, "micro_batches": 4}
KINDS: dict[str, dict[str, Any]] = {
    "one mesh": {},
    "data parallel": {"search": "data parallel"},
    "stages": STAGED,
    "halves": {"mesh": "4", "duplex": True},
    "layers again": {"recompute": "layers"},
    "no engine": {"engine": None},
}


def every() -> dict[str, Plan]:
    """Return plans of one program of all kinds."""
    found = {kind: planned("transformer", **options) for kind, options in KINDS.items()}
    two = of_two_kinds(cluster())
    options = {"cluster": "1*fastx2 + 1*slowx2", "pipeline": 2, "micro_batches": 2}
    found["kinds"] = autoddl.optimize(
        PROGRAMS["transformer"], profile=two, budget=LITTLE, **options
    )
    return found


def mirrored(told: PlanDiff) -> tuple[Any, ...]:
    """Return a difference seen from the other plan."""
    settings = {(each.name, each.second, each.first) for each in told.settings}
    layers = {(each.modules, each.ops, each.second, each.first) for each in told.layers}
    return settings, layers, told.estimates[::-1]


def seen(told: PlanDiff) -> tuple[Any, ...]:
    settings = {(each.name, each.first, each.second) for each in told.settings}
    layers = {(each.modules, each.ops, each.first, each.second) for each in told.layers}
    return settings, layers, told.estimates


def test_nothing_differs_from_itself_and_both_ways_are_the_same(tmp_path: Path) -> None:
    plans = every()
    for name, plan in plans.items():
        plan.save(tmp_path / "plan.json")
        same = plan.diff(autoddl.load(tmp_path / "plan.json"))
        assert same.is_empty and str(same) == SAME, name
    one, *others = plans.values()
    for other in others:
        told = one.diff(other)
        assert not told.is_empty
        assert seen(other.diff(one)) == mirrored(told)


def test_one_op_in_another_state_is_one_row() -> None:
    plan = planned("transformer", search="data parallel")
    part = plan.parts[0]
    op = next(op for op in plan.program.ops if op.module == "model.blocks.1.fc1")
    states = {o: autoddl.sbp.state.NdSbp.parse("B,B") for o in plan.signatures[op.name]}
    layout = replace(part.layout, signatures={**plan.signatures, op.name: states})
    other = replace(plan, parts=(replace(part, layout=layout),))
    told = plan.diff(other)
    (row,) = told.layers
    assert not told.settings and row.modules == ("model.blocks.1.fc1",) and row.ops == 1
    assert "(B, B)" in row.second.signature and "(S0, S0)" in row.first.signature
    costs = {each.module: each for each in plan.rows}[row.modules[0]]
    assert row.first.compute_s == costs.compute_s
    assert row.first.memory_bytes == costs.memory_bytes


def test_a_parameter_that_is_kept_otherwise_is_a_row() -> None:
    plan = planned("transformer", search="data parallel")
    part, name = plan.parts[0], "model.blocks.1.fc1.weight"
    kept = {**plan.variables, name: autoddl.sbp.state.NdSbp.parse("S0,B")}
    layout = replace(part.layout, variables=kept)
    (row,) = plan.diff(replace(plan, parts=(replace(part, layout=layout),))).layers
    assert row.modules == ("model.blocks.1.fc1",) and row.ops == 1
    signatures = row.first.signature, row.second.signature
    assert signatures == ("weight kept as (B, B)", "weight kept as (S0, B)")


def test_rows_are_all_modules_whose_states_differ() -> None:
    """Counted op by op, whatever the rows say of them."""
    one, other = planned("transformer"), planned("transformer", search="data parallel")
    own = {p.tensor.rpartition(".")[0]: p.tensor for p in one.program.parameters}
    differ = {
        op.module or "(graph)"
        for op in one.program.ops
        if one.signatures[op.name] != other.signatures[op.name]
    }
    differ |= {m for m, name in own.items() if one.variables[name] != other.variables[name]}
    assert {m for row in one.diff(other).layers for m in row.modules} == differ
    assert sum(row.ops > 0 for row in one.diff(other).layers) < len(differ)  # equal ones together


def test_settings_tell_what_was_asked_for() -> None:
    told = planned("transformer").diff(planned("transformer", **STAGED))
    found = {each.name: (each.first, each.second) for each in told.settings}
    assert found["stages"] == ("1", "2") and found["micro-batches"] == ("1", "4")
    assert found["devices"] == ("mesh 2x2", "2 stages of mesh 2")
    again = planned("transformer").diff(planned("transformer", recompute="layers"))
    assert {each.name for each in again.settings} >= {"ops computed again"}


def test_another_order_of_tasks_is_told() -> None:
    plan = autoddl.optimize(
        mlp(64, (64, 64, 64)), mesh="1", pipeline=2, micro_batches=4, profile=cluster(),
        engine="script", budget=LITTLE,
    )  # fmt: skip
    written = plan.tasks.written
    assert "F1>1 B0<1 B0 F2" in written[0]
    one, other = (
        replace(plan, orders=(written[0].replace("F1>1 B0<1 B0 F2", edited), written[1]))
        for edited in ("F1>1 F2 B0<1 B0", "F1>1 B0<1 F2 B0")
    )
    for first, second, expected in (
        (plan, one, ("1f1b", "own")),
        (one, other, ("stage 0: … F2 …", "stage 0: … B0<1 …")),
    ):
        (setting,) = first.diff(second).settings
        assert (setting.name, setting.first, setting.second) == ("order of tasks", *expected)
    assert plan.diff(replace(plan, orders=written)).is_empty


def test_another_batch_is_of_the_same_program() -> None:
    program = PROGRAMS["transformer"]
    other = autoddl.optimize(with_batch(program, 16), mesh="2x2", profile=cluster(), budget=LITTLE)
    found = {each.name: each for each in planned("transformer").diff(other).settings}
    assert (found["batch"].first, found["batch"].second) == ("8", "16")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (transformer(layers=3), "parameter 'model.blocks.2.attention.proj.bias' is missing in the"),
        (
            transformer(layers=2, width=64),
            "parameter 'model.blocks.0.attention.proj.bias' has shape",
        ),
        (replace(PROGRAMS["transformer"], device="cuda"), "for cpu and for cuda devices"),
    ],
)
def test_plans_of_other_programs_are_refused(program: Any, expected: str) -> None:
    plan = planned("transformer")
    other = autoddl.optimize(program, mesh="2", profile=cluster(), search="data parallel")
    with pytest.raises(AutoDDLError, match=expected) as error:
        plan.diff(other)
    assert plan.fingerprint in str(error.value) and other.fingerprint in str(error.value)
    assert str(error.value).isprintable()


def test_other_ops_with_equal_parameters_are_another_program() -> None:
    one, other = (
        autoddl.optimize(mlp(act=act), mesh="2", profile=cluster(), budget=LITTLE)
        for act in ("gelu", "relu")
    )
    with pytest.raises(AutoDDLError, match=r"module 'model.act1' has other ops"):
        one.diff(other)
    with pytest.raises(AutoDDLError, match="got 3; allowed is a plan"):
        one.diff(3)  # type: ignore[arg-type]
