"""Workspaces that follow from shapes."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.perfmodel.oneflow.workspace import workspace_bytes
from autoddl.sbp.program import Op


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
def test_bytes(
    type_: str, attributes: dict[str, Any], shapes: dict[str, tuple[int, ...]], expected: int
) -> None:
    *inputs, output = shapes
    op = Op(
        "op", type_, tuple((o, o) for o in inputs), ((output, output),),
        attrs=tuple(attributes.items()),
    )  # fmt: skip
    assert workspace_bytes(op, shapes, dict.fromkeys(shapes, 4)) == expected
