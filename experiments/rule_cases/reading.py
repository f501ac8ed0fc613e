"""Ops as values: shapes and attributes written as short texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from autoddl.sbp.program import Op
from autoddl.sbp.rewrites.micro_attributes import resized
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.registry import OpView


def case(op_type: str, text: str, **attrs: Any) -> OpView:
    """Read "a: 8 4, b: 4 12 -> out: 8 12" as the shapes of an op.

    Operands have the engine's names; of the first of a kind the number may be left out: "a" is "a_0".
    """
    sides = []
    for side in text.split("->"):
        pairs = (part.split(":") for part in side.split(",") if part.strip())
        sides.append({_numbered(name.strip()): _shape(dims) for name, dims in pairs})
    inputs, outputs = sides
    return OpView(op_type, tuple(inputs), tuple(outputs), inputs | outputs, attrs)


def each(op_types: str, *texts: str, **attrs: Any) -> Sequence[OpView]:
    """Return the cases of all these op types, with spaces between them, and all these shapes."""
    return [case(op_type, text, **attrs) for op_type in op_types.split() for text in texts]


def threefold(view: OpView) -> OpView:
    """Return the op with all that its rule cuts three times as long: "x: 4 8 5 -> y: 4 8 5" in 12, 24, 5.

    So cuts into three units exist, of which cases have few.
    """
    rule = registry.find(view.type)
    dims = rule.indices(view).dims if rule is not None else {}
    shapes = {
        name: tuple(
            3 * size if index is not None and size > 1 else size
            for size, index in zip(shape, dims.get(name, (None,) * len(shape)), strict=True)
        )
        for name, shape in view.shape.items()
    }
    inputs, outputs = (tuple(zip(side, side, strict=True)) for side in (view.inputs, view.outputs))
    op = Op(view.type, view.type, inputs, outputs, tuple(view.attr.items()))
    both = {name: (view.shape[name], shape) for name, shape in shapes.items()}
    return OpView(view.type, view.inputs, view.outputs, shapes, dict(resized(op, both, None)))


def case_id(view: OpView) -> str:
    """Return a short test id: the op type and the input shapes."""
    shapes = "-".join("x".join(map(str, view.shape[name])) or "0d" for name in view.inputs)
    return f"{view.type}[{shapes}]"


def _numbered(name: str) -> str:
    return name if re.search(r"_\d+$", name) else f"{name}_0"


def _shape(dims: str) -> tuple[int, ...]:
    return tuple(map(int, dims.split()))
