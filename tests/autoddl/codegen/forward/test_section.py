"""Values of a part of the forward pass: what is read in which state, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoddl.api import Plan
from autoddl.codegen.forward.section import Section, Value, forward_ops
from autoddl.sbp.program import Program
from tests.autoddl.codegen.plans import planned
from tests.support.programs import Builder, linear, mlp, mse, reshape


def section(plan: Plan) -> Section:
    arguments = {item.name: item.state for item in plan.inputs}
    return Section(plan, forward_ops(plan.program), arguments, ())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(mlp(), "2x2")


def test_ops_come_as_the_user_wrote_them() -> None:
    program = mlp()
    forward = [op for op in program.ops if op.phase == "forward"]
    turned = replace(program, ops=(*reversed(forward), *program.ops[len(forward) :]))
    assert forward_ops(turned) == forward_ops(program) == tuple(forward)


def test_every_value_is_in_the_state_in_which_it_is_read(plan: Plan) -> None:
    whole = section(plan)
    for op in whole.ops:
        for operand, value in whole.reads(op).items():
            assert whole.state(value) == plan.signatures[op.name][operand]


def test_boxings_lead_from_what_is_made_to_what_is_read(plan: Plan) -> None:
    whole = section(plan)
    forward = {op.name for op in whole.ops}
    paths = [r for r in plan.redistributions if {op for op, _ in r.readers} & forward]
    assert paths
    for item in paths:
        value = Value(item.tensor, item.path)
        while value.path:
            assert value in whole.boxed[value.source]
            value = value.source


def shaped(to: tuple[int, ...]) -> Program:
    """Return two layers with reshapes to `to` and back between them."""
    g = Builder()
    x, target = g.input((8, 16)), g.input((8, 4))
    with g.module("model"):
        with g.module("first"):
            x = linear(g, x, 4)
        x = reshape(g, reshape(g, x, to), (8, 4))
        with g.module("last"):
            x = linear(g, x, 4)
    return g.program(mse(g, x, target), "sgd")


@pytest.mark.parametrize(("to", "written"), [((8, 4), 0), ((4, 8), 2)])
def test_a_reshape_to_the_same_shape_is_left_out(to: tuple[int, ...], written: int) -> None:
    whole = section(planned(shaped(to), "2", "data parallel"))
    assert sum(op.type == "reshape" for op in whole.ops) == written
    last = next(op for op in whole.ops if (op.module, op.type) == ("model.last", "matmul"))
    maker = whole.made_by[whole.reads(last)["a_0"].tensor]
    assert maker.type == ("reshape" if written else "broadcast_add")
