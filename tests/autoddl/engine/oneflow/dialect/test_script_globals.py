"""What scripts define besides the model's functions is what models' names keep away from."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest

from autoddl.api import Plan
from autoddl.engine.oneflow.dialect.script_tables import GLOBALS
from tests.autoddl.codegen.plans import generate, planned
from tests.support.pipelines import in_stages, recomputing
from tests.support.programs import Builder, attention, linear, mlp, mse


def defined(text: str) -> set[str]:
    """Return the names that a script defines or imports outside of functions."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names = [n for target in node.targets for n in ast.walk(target)]
            found |= {n.id for n in names if isinstance(n, ast.Name)}
    return found


@pytest.fixture(scope="module")
def small() -> Plan:
    return planned(mlp(), "2x2")


def test_the_names_of_scripts_are_known(small: Plan) -> None:
    staged = in_stages(small, 2, 2, lambda module: int(module.endswith("2")))
    kinds = [small, staged, recomputing(staged, (0,)), in_stages(small, 1, 2, lambda _: 0)]
    kinds.append(replace(staged, orders=staged.tasks.written))
    found = set().union(*(defined(generate(plan)) for plan in kinds))
    assert found - GLOBALS == {"forward", "loss_of", "stage_0", "stage_1"}
    only_some = {"make_schedule", "part", "whole_batch_norm"}
    assert GLOBALS - found == {"INPUT", "RANK", *only_some}


@pytest.mark.parametrize("name", sorted(GLOBALS - {"B", "P", "S", "F"}))
def test_modules_with_names_of_the_script_hide_nothing(name: str) -> None:
    g = Builder()
    x, target = g.input((4, 8, 16)), g.input((4, 8, 16))
    with g.module("model"):
        with g.module(name):
            x = attention(g, x, 4)
        for number in ("0", "1", "2"):  # a table of their own, called after the list
            with g.module(f"{name.lower().rstrip('s')}s.{number}"):
                x = attention(g, x, 4)
        with g.module("last"):
            x = linear(g, x, 16)
    text = generate(planned(g.program(mse(g, x, target), "sgd"), "2", "data parallel"))
    functions = [n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    tables = re.findall(r"^(\w+) = ", text, re.MULTILINE)
    assert len({*functions, *tables}) == len([*functions, *tables])
    assert not {"logging", "argparse", "itertools", "np", "flow"} & {*functions, *tables}
