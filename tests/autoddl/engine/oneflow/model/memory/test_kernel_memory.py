"""Which input a result may share memory with, and workspaces that follow from shapes."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.engine.oneflow.model.memory.kernel_memory import VIEWS, shared_input, workspace_bytes
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
    known = dict.fromkeys(shapes, 4), dict.fromkeys(shapes, "float32")
    assert workspace_bytes(op, shapes, *known) == expected


@pytest.mark.parametrize(
    ("type_", "axes", "shapes", "expected"),
    [  # the sizes that OneFlow's plan of GPT for CUDA has
        ("reduce_sum", (0,), {"input_tensor_0": (1024,), "output_tensor_0": ()}, 2048),
        ("reduce_sum", (0,), {"input_tensor_0": (3,), "output_tensor_0": ()}, 512),
        ("reduce_sum_like", (0, 1), {"x_0": (8, 128, 512), "like_0": (512,), "y_0": (512,)}, 2048),
        ("reduce_sum_like", (2,), {"x_0": (8, 4, 512), "like_0": (8, 4), "y_0": (8, 4)}, 1024),
        # neither first nor last axes: in float32, what is summed up twice and the result
        (
            "reduce_sum_like", (1,), {"x_0": (8, 128, 64), "like_0": (8, 64), "y_0": (8, 64)},
            2 * 8 * 128 * 64 * 4 + 8 * 64 * 4,
        ),
        (
            "unsorted_segment_sum_like", None,
            {"data_0": (8, 128, 512), "like_0": (2048, 512), "segment_ids_0": (8, 128),
             "out_0": (2048, 512)}, 4194304,
        ),
    ],
)  # fmt: skip
def test_half_precision_has_workspaces_of_its_own(
    type_: str, axes: tuple[int, ...] | None, shapes: dict[str, tuple[int, ...]], expected: int
) -> None:
    *inputs, output = shapes
    attrs = () if axes is None else (("axis", axes),)
    op = Op("op", type_, tuple((o, o) for o in inputs), ((output, output),), attrs=attrs)
    known = dict.fromkeys(shapes, 2), dict.fromkeys(shapes, "float16")
    assert workspace_bytes(op, shapes, *known) == expected
