"""Which input a result may share memory with."""

from __future__ import annotations

import pytest

from autoddl.perfmodel.oneflow.inplace import is_view, shared_input
from autoddl.sbp.program import Op

SQUARE = (4, 4)


@pytest.mark.parametrize(
    ("type_", "operands", "perm", "expected"),
    [
        ("reshape", ["in_0"], None, ("in_0", False)),
        ("relu", ["x_0"], None, ("x_0", True)),
        ("add_n", ["in_0", "in_1"], None, ("in_0", True)),
        ("matmul", ["a_0", "b_0"], None, None),  # without a tensor to add to
        ("matmul", ["a_0", "b_0", "_add_to_output_0"], None, ("_add_to_output_0", True)),
        ("transpose", ["input_0"], (1, 0), None),
        ("transpose", ["input_0"], (0, 1), ("input_0", False)),
        ("tanh", ["x_0"], None, None),
    ],
)
def test_what_is_shared(
    type_: str, operands: list[str], perm: tuple[int, ...] | None, expected: tuple[str, bool] | None
) -> None:
    attrs = () if perm is None else (("perm", perm),)
    op = Op("op", type_, tuple((o, o) for o in operands), (("out_0", "out"),), attrs=attrs)
    shapes = dict.fromkeys([*operands, "out_0"], SQUARE)
    assert shared_input(op, shapes, dict.fromkeys(shapes, "float32")) == expected
    assert is_view(op) == (type_ == "reshape")


def test_a_transposition_of_dims_of_one_element_moves_nothing() -> None:
    op = Op("op", "transpose", (("input_0", "a"),), (("out_0", "b"),), attrs=(("perm", (1, 0)),))
    shapes = {"input_0": (1, 4), "out_0": (4, 1)}
    assert shared_input(op, shapes, {}) == ("input_0", False)


@pytest.mark.parametrize("goal", ["float32", "float16"])
def test_a_cast_to_the_same_type_is_a_view(goal: str) -> None:
    op = Op("op", "cast", (("in_0", "a"),), (("out_0", "b"),))
    found = shared_input(op, {"in_0": SQUARE, "out_0": SQUARE}, {"in_0": "float32", "out_0": goal})
    assert found == (("in_0", False) if goal == "float32" else None)
