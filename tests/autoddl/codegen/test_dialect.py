"""A dialect of another engine, made up: what is neutral of a script comes without a word of OneFlow's."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from autoddl import codegen
from autoddl.codegen.dialect import Axes, Dialect, ScriptContent
from autoddl.codegen.source.expression import Expr, call, quoted
from autoddl.codegen.templates import Template
from autoddl.engine.oneflow.model.script_model import SCRIPT
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.plan.value import PlanValue
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import NdSbp
from autoddl.search.baselines import BASELINES
from experiments.lib.oneflow_problems import build
from tests.autoddl.codegen.plans import generate, planned, with_updates
from tests.support.pipelines import in_stages
from tests.support.programs import mlp, transformer


class _Anything(defaultdict[str, Template]):
    """A template for every op type: a call of a function of its name."""

    def get(self, key: str, default: Any = None) -> Template:
        return Template(lambda op: call(f"eng.{key}", *op.args.values()), "x")


class OtherDialect:
    """Functions only, states as texts."""

    templates: Mapping[str, Template] = _Anything()
    globals = frozenset({"eng"})

    def check(self, plan: PlanValue) -> None:
        if plan.mesh.ndim > 2:
            raise AutoDDLError("codegen: eng has meshes of two axes")

    def placement(self, *, staged: bool) -> Expr:
        return Expr("eng.devices")

    def boxed(
        self, value: Expr, before: NdSbp, after: NdSbp, *, trained: bool, late: Axes = (),
        grouped: bool = False,
    ) -> Expr:  # fmt: skip
        return call("eng.reshard", value, str(before), str(after), trained)

    def read(self, value: Expr, axes: Axes) -> Expr:
        return value

    def pinned(self, value: Expr, state: NdSbp) -> Expr:
        return value

    def script(self, content: ScriptContent) -> str:
        names = [quoted(item.name) for item in content.inputs]
        return "\n\n\n".join(["import eng", *content.functions, f"INPUTS = [{', '.join(names)}]"])


DIALECT: Dialect = OtherDialect()
OWN_WORDS = ("flow", "to_global", "sbp", "PLACEMENT", "oneflow")


@pytest.mark.parametrize("stages", [1, 2])
def test_nothing_neutral_says_oneflow(stages: int) -> None:
    plan = planned(transformer(layers=2), "2x2")
    if stages > 1:
        plan = in_stages(plan, 2, 2, lambda m: int(m.split(".")[2]) if "blocks." in m else None)
    text = codegen.generate(plan, DIALECT)
    ast.parse(text)
    assert not [word for word in OWN_WORDS if word in text]
    assert ("def stage_1(" if stages > 1 else "def loss_of(params, ids, labels):") in text
    assert 'eng.reshard(x, "(S' in text


def test_a_dialect_refuses_what_its_engine_has_not() -> None:
    with pytest.raises(AutoDDLError, match="eng has meshes of two axes"):
        codegen.generate(planned(mlp(), "2x2x2"), DIALECT)


def test_gradients_of_what_is_gathered_are_added_up_as_they_are_scattered() -> None:
    """ZeRO over shares: not first all of the sum on every rank, and then a slice of it."""
    program = with_updates(transformer(layers=1, batch=16, length=8, width=32))
    problem = build(program, Mesh.parse("2:3/1"), profiles.load(None), engine=SCRIPT)
    found = BASELINES["ZeRO 2"](problem)
    assert found is not None
    text = generate(make_plan(problem, problem.result("ZeRO 2", found)))
    gathers = [line for line in text.splitlines() if "weight = boxed(" in line and "[B]" in line]
    assert gathers
    assert all("late=(0,)" in line for line in gathers), gathers
    assert "summed_back(weight" not in text
