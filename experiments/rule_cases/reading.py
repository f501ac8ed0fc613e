"""Ops as values: shapes and attributes written as short texts."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView


def case(op_type: str, text: str, **attrs: Any) -> OpView:
    """Read "a_0: 8 4, b_0: 4 12 -> out_0: 8 12" as the shapes of an op."""
    sides = []
    for side in text.split("->"):
        pairs = (part.split(":") for part in side.split(",") if part.strip())
        sides.append({name.strip(): tuple(map(int, dims.split())) for name, dims in pairs})
    inputs, outputs = sides
    return OpView(op_type, tuple(inputs), tuple(outputs), inputs | outputs, attrs)


def case_id(view: OpView) -> str:
    """Return a short test id: the op type and the input shapes."""
    shapes = "-".join("x".join(map(str, view.shape[name])) or "0d" for name in view.inputs)
    return f"{view.type}[{shapes}]"
