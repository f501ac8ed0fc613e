"""Which input a result may share memory with, and workspaces that follow from shapes."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.perfmodel.oneflow.kernel_memory import VIEWS, shared_input, workspace_bytes
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
    assert (type_ in VIEWS) == (type_ == "reshape")


def test_a_transposition_of_dims_of_one_element_moves_nothing() -> None:
    op = Op("op", "transpose", (("input_0", "a"),), (("out_0", "b"),), attrs=(("perm", (1, 0)),))
    shapes = {"input_0": (1, 4), "out_0": (4, 1)}
    assert shared_input(op, shapes, {}) == ("input_0", False)


@pytest.mark.parametrize("goal", ["float32", "float16"])
def test_a_cast_to_the_same_type_is_a_view(goal: str) -> None:
    op = Op("op", "cast", (("in_0", "a"),), (("out_0", "b"),))
    found = shared_input(op, {"in_0": SQUARE, "out_0": SQUARE}, {"in_0": "float32", "out_0": goal})
    assert found == (("in_0", False) if goal == "float32" else None)


@pytest.mark.parametrize(
    ("type_", "attributes", "shapes", "expected"),
    [
        ("reduce_sum", {}, {"input_tensor_0": (3, 5), "y_0": (3,)}, 4 * 15),
        ("reduce_sum_like", {"axis": (0,)}, {"x_0": (3, 5), "like_0": (5,), "y_0": (5,)}, 4 * 15),
        ("reduce_sum_like", {"axis": ()}, {"x_0": (3, 5), "like_0": (3, 5), "y_0": (3, 5)}, 0),
        ("broadcast_div_grad", {}, {"dz_0": (3, 5), "z_0": (3, 5), "y_0": (5,), "dy_0": (5,)}, 60),
        ("argmax", {}, {"in_0": (3, 5), "out_0": (3,)}, 8 * 3),
        ("where", {}, {"condition_0": (3, 1), "x_0": (3, 5), "y_0": (5,), "out_0": (3, 5)}, 180),
        ("relu", {}, {"x_0": (3, 5), "y_0": (3, 5)}, 0),
    ],
)
def test_workspaces_follow_from_shapes(
    type_: str, attributes: dict[str, Any], shapes: dict[str, tuple[int, ...]], expected: int
) -> None:
    *inputs, output = shapes
    op = Op(
        "op", type_, tuple((o, o) for o in inputs), ((output, output),),
        attrs=tuple(attributes.items()),
    )  # fmt: skip
    assert workspace_bytes(op, shapes, dict.fromkeys(shapes, 4)) == expected
