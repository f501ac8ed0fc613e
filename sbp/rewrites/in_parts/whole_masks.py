"""Dropout whose activation may be cut, with the mask of one device.

The op `dropout` draws a mask of what it sees, so its activation stays whole. Here each device draws the
whole mask, of which it takes its part for nothing, and only what applies it is cut:

    mask = dropout(zeros)                  whole, on every device
    y = x · mask / (1 - rate)              cut as x is
    dx = dy · mask / (1 - rate)            as before

Where an engine begins every dropout of a graph at the same random numbers (OneFlow 0.9 does), those of
one shape, dtype and rate have the same mask in each step, and one is drawn for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.program.ops_and_tensors import UNREAD, copy_of

PREFIX = "autoddl-mask-"
"""What the names of the ops begin with that a program has only then."""
_DTYPES = {"float32": 2, "float64": 3, "float16": 9}  # the engine's numbers
_APPLIED = "dropout_grad"  # the engine's op that applies a mask which it is given


def with_whole_masks(program: Program, *, alike: bool) -> Program:
    """Return a program that draws masks whole, one for all that are `alike`; the same if it has none."""
    drawn: dict[Any, str] = {}  # by what masks have in common their name
    ops: list[Op] = []
    tensors = {tensor.name: tensor for tensor in program.tensors}
    renamed: dict[str, str] = {}
    for op in program.ops:
        read = tuple((operand, renamed.get(name, name)) for operand, name in op.inputs)
        if not _draws(program, op):
            ops.append(op if read == op.inputs else replace(op, inputs=read))
            continue
        x, made = program.tensor[dict(op.inputs)["in_0"]], dict(op.outputs)
        key = (x.shape, x.dtype, op.attr["rate"], None if alike else op.name)
        if key not in drawn:
            for one in _drawing(op, x):
                ops.append(one)
                kinds = {"mask_0": "bool"}
                for operand, name in one.outputs:
                    tensors[name] = Tensor(name, x.shape, kinds.get(operand, x.dtype), "activation")
            drawn[key] = f"{PREFIX}drawn-{op.name}/mask_0"
        result = f"{op.name}/dx_0"
        renamed |= {made["mask_0"]: drawn[key], made["out_0"]: result}
        tensors[result] = replace(tensors.pop(made["out_0"]), name=result)
        del tensors[made["mask_0"]]
        scale = float(np.float32(1) / (np.float32(1) - np.float32(op.attr["rate"])))
        inputs = (("dy_0", dict(read)["in_0"]), ("mask_0", drawn[key]))
        ops.append(
            replace(
                op, type=_APPLIED, inputs=inputs, outputs=(("dx_0", result),), attrs=(("scale", scale),)
            )
        )  # fmt: skip
    if not drawn:
        return program
    outputs = tuple(renamed.get(name, name) for name in program.outputs)
    return replace(program, ops=tuple(ops), tensors=tuple(tensors.values()), outputs=outputs)


def has_whole_masks(program: Program) -> bool:
    """Tell whether a program is what `with_whole_masks` has made of another one."""
    return any(is_drawn(op.name) for op in program.ops)


def is_drawn(name: str) -> bool:
    """Tell whether an op, or what makes a tensor, takes part in drawing a mask."""
    return copy_of(name).startswith(PREFIX)


def _draws(program: Program, op: Op) -> bool:
    """Tell whether an op is a dropout that can be parted."""
    if op.type != "dropout" or op.phase != "forward" or op.name.startswith(PREFIX):
        return False
    names = {operand for operand, _ in op.inputs}
    outputs = {operand for operand, _ in op.outputs}
    known = program.tensor[op.inputs[0][1]].dtype in _DTYPES
    return names == {"in_0"} and outputs == {"mask_0", "out_0"} and known and op.attr["rate"] < 1


def _drawing(op: Op, x: Tensor) -> Iterator[Op]:
    """Yield the ops that draw the mask of a dropout."""
    zeros, drawn = f"{PREFIX}zeros-{op.name}", f"{PREFIX}drawn-{op.name}"
    op = replace(op, module="")  # or the first of equal layers would be unlike the others
    attrs = {
        "dtype": _DTYPES[x.dtype], "floating_value": 0.0, "integer_value": 0, "is_floating_value": True,
        "nd_sbp": (), "shape": x.shape,
    }  # fmt: skip
    yield replace(
        op, name=zeros, type="constant", inputs=(), outputs=(("out_0", f"{zeros}/out_0"),),
        attrs=tuple(sorted(attrs.items())),
    )  # fmt: skip
    yield replace(
        op, name=drawn, inputs=(("in_0", f"{zeros}/out_0"),),
        outputs=(("mask_0", f"{drawn}/mask_0"), ("out_0", f"{drawn}/out_0")),
        attrs=tuple(sorted({**op.attr, UNREAD: ("out_0",)}.items())),
    )  # fmt: skip


def renamed_in_one(program: Program) -> dict[str, str]:
    """Return by name the results of dropouts in parts as they are called where each is one op."""
    return {f"{name}/dx_0": f"{name}/out_0" for name in _rates(program)[1]}


def _rates(program: Program) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rates of masks that are drawn, and of the ops that apply them in the forward pass."""
    drawn = {
        name: op.attr["rate"]
        for op in program.ops
        if is_drawn(op.name) and op.type == "dropout"
        for _, name in op.outputs
    }
    applied = {
        op.name: drawn[dict(op.inputs)["mask_0"]]
        for op in program.ops
        if op.type == _APPLIED and op.phase == "forward" and dict(op.inputs)["mask_0"] in drawn
    }
    return drawn, applied


def in_one_dropout(layout: Layout) -> Layout:
    """Return the layout of the program that `with_whole_masks` was given; the same if it was given none.

    There masks have the states of the activations that they are of.
    """
    program = layout.program
    if not has_whole_masks(program):
        return layout
    rates, applied = _rates(program)
    renamed = renamed_in_one(program)
    left: dict[str, list[str]] = {}  # by module its dropouts; the last one comes first backward
    for name in applied:
        left.setdefault(program.op[name].module, []).append(name)
    signatures = dict(layout.signatures)
    ops: list[Op] = []
    tensors = {t.name: t for t in program.tensors if not is_drawn(t.name)}
    for op in program.ops:
        if is_drawn(op.name):
            continue
        inputs = tuple((operand, renamed.get(name, name)) for operand, name in op.inputs)
        if op.name not in applied:
            if dict(inputs).get("mask_0", "") in rates:
                mine = left.get(op.module) or list(applied)
                inputs = (inputs[0], ("mask_0", f"{mine.pop()}/mask_0"))
            ops.append(replace(op, inputs=inputs))
            continue
        state = signatures[op.name]["dx_0"]
        signatures[op.name] = dict.fromkeys(("in_0", "mask_0", "out_0"), state)
        result = tensors.pop(f"{op.name}/dx_0")
        for operand, dtype in (("mask_0", "bool"), ("out_0", result.dtype)):
            name = f"{op.name}/{operand}"
            tensors[name] = replace(result, name=name, dtype=dtype)
        outputs = tuple((operand, f"{op.name}/{operand}") for operand in ("mask_0", "out_0"))
        made = replace(
            op, type="dropout", inputs=(("in_0", dict(inputs)["dy_0"]),), outputs=outputs
        )
        ops.append(replace(made, attrs=(("rate", applied[op.name]),)))
    results = tuple(renamed.get(name, name) for name in program.outputs)
    whole = replace(program, ops=tuple(ops), tensors=tuple(tensors.values()), outputs=results)
    moves = [
        Redistribution(renamed.get(m.tensor, m.tensor), m.path, readers, m.after, m.early)
        for m in layout.redistributions
        if not is_drawn(m.tensor)
        for readers in (tuple((o, "in_0" if o in applied else p) for o, p in m.readers),)
    ]
    kept = [pair for pair in layout.after.items() if not any(map(is_drawn, pair))]
    return Layout.of(whole, signatures, layout.variables, layout.inputs, moves, dict(kept))
