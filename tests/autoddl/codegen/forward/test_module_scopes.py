"""Which modules become functions, and where values are made."""

from __future__ import annotations

import pytest

from autoddl.api import Plan
from autoddl.codegen.forward.module_scopes import Scopes, common, within
from autoddl.codegen.forward.section import Section, Value, forward_ops
from tests.autoddl.codegen.plans import planned
from tests.support.programs import transformer


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(transformer(layers=2), "2x2")


def section(plan: Plan) -> Section:
    arguments = {item.name: item.state for item in plan.inputs}
    return Section(plan, forward_ops(plan.program), arguments, ())


def test_paths_are_compared_part_by_part() -> None:
    assert within("blocks.1.fc", "blocks.1")
    assert not within("blocks.10", "blocks.1")
    assert within("anything", "")
    assert common(["a.b.c", "a.b.d.e"]) == "a.b"
    assert common(["a", "b"]) == ""


def test_large_modules_in_one_piece_become_functions(plan: Plan) -> None:
    found = Scopes(section(plan), "model").functions
    assert {"", "model", "model.blocks.0", "model.blocks.1.attention"} <= set(found)
    assert not [module for module in found if module.endswith((".fc1", ".act"))]  # too small


def test_a_stage_has_no_function_of_the_whole_model(plan: Plan) -> None:
    assert "model" not in Scopes(section(plan), "model", inline_top=True).functions


def test_every_op_is_written_in_the_innermost_function_around_it(plan: Plan) -> None:
    whole = section(plan)
    scopes = Scopes(whole, "model")
    for op in whole.ops:
        scope = scopes.scope(op)
        assert within(op.module, scope)
        deeper = [f for f in scopes.functions if within(op.module, f) and len(f) > len(scope)]
        assert deeper == []
        if scope:
            assert within(scope, scopes.parent(scope))


def test_values_are_made_where_all_that_read_them_look(plan: Plan) -> None:
    whole = section(plan)
    scopes = Scopes(whole, "model")
    assert {value.tensor for value in scopes.homes} >= set(whole.made_by)
    for value, home in scopes.homes.items():
        for reader in whole.readers.get(value, ()):
            made_by_op = value == Value(value.tensor) and value.tensor in whole.made_by
            assert made_by_op or within(scopes.scope(reader), home)
