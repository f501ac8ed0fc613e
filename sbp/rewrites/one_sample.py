"""What the engine traces otherwise where a dim of the batch is down to size 1.

It adds nothing up over such a dim, multiplies nothing by 1/1, and adds equal shapes without repeating
any. Ops then vanish or are of another type, and the numbers in the names of later ones shift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from autoddl.sbp.program import Op, Parameter, Program, Tensor

_NUMBERED = re.compile(r"^(?P<scope>(?:.*-)?)(?P<type>[^-]+)-(?P<number>\d+)$")
# Op type → what it becomes, with the operands' new names.
_RESHAPED = ("reshape_like", {"x_0": "in_0", "like_0": "like_0", "y_0": "out_0"})
_ADDED = ("add_n", {"x_0": "in_0", "y_0": "in_1", "z_0": "out_0"})


def as_traced(whole: Program, part: Program) -> Program:
    """Return `part`, a micro-batch of `whole` with the same ops, with those that the engine makes.

    Nothing changes unless a dim has size 1 in `part` only.
    """
    shrunk = {
        b.name
        for a, b in zip(whole.tensors, part.tensors, strict=True)
        if 1 in b.shape and a.shape != b.shape
    }
    if not shrunk:
        return part
    ops = [
        _traced(part, op) if any(name in shrunk for _, name in op.operands) else op
        for op in part.ops
    ]
    for place, pair in enumerate(zip(whole.ops, part.ops, strict=True)):
        if pair[0].type == "scalar_mul":
            factors = [op.attr.get("float_operand") for op in pair]
            if factors[0] != factors[1] == 1.0:  # the mean of one number
                ops[place] = None
    return _Renaming(part, ops).program()


def _traced(part: Program, op: Op) -> Op | None:
    """Return the op that takes the place of `op`, or None where it vanishes."""
    shapes = part.shapes(op)
    match op.type:
        case "reduce_sum_like":
            return _reduced_like(op, shapes["x_0"], shapes["like_0"])
        case "broadcast_add" if shapes["x_0"] == shapes["y_0"]:
            return _changed(op, *_ADDED)
        case "reduce_sum" | "broadcast_like" if op.phase == "backward":  # of expand, of sums
            return None if len(set(shapes.values())) == 1 else op
    return op


def _reduced_like(op: Op, large: tuple[int, ...], like: tuple[int, ...]) -> Op | None:
    axes = tuple(axis for axis in op.attr["axis"] if large[axis] != 1)
    if axes:
        attrs = {**op.attr, "axis": axes}
        return op if axes == op.attr["axis"] else replace(op, attrs=tuple(attrs.items()))
    return None if large == like else _changed(op, *_RESHAPED)


def _changed(op: Op, op_type: str, operands: dict[str, str]) -> Op:
    """Return an op of another type without attributes; tensors keep their names for now."""
    inputs, outputs = (
        tuple(sorted((operands[operand], name) for operand, name in pairs))
        for pairs in (op.inputs, op.outputs)
    )
    return replace(op, type=op_type, inputs=inputs, outputs=outputs, attrs=())


class _Renaming:
    """Ops and tensors under the names that they have when some ops are gone or of another type."""

    def __init__(self, part: Program, ops: list[Op | None]) -> None:
        """Take the ops of `part` and, in their places, the new ones."""
        self.part = part
        self.ops = [op for op in ops if op is not None]
        gone = [old for old, new in zip(part.ops, ops, strict=True) if new is None]
        self.gone = sorted(n for n in map(_number, gone) if n is not None)
        self.read = {op.outputs[0][1]: _passed(op) for op in gone}
        self.names = {op.name: self._name(op) for op in self.ops}
        self.tensors = {
            name: f"{self.names[op.name]}/{operand}" if name.startswith(f"{op.name}/") else name
            for op in self.ops
            for operand, name in op.outputs
        }

    def program(self) -> Program:
        part = self.part
        loss = None if part.loss is None else self._tensor(part.loss)
        return replace(
            part,
            ops=tuple(self._op(op) for op in self.ops),
            tensors=tuple(self._kept(loss)),
            outputs=tuple(map(self._tensor, part.outputs)),
            parameters=tuple(map(self._parameter, part.parameters)),
            loss=loss,
        )

    def _name(self, op: Op) -> str:
        found, number = _NUMBERED.match(op.name), _number(op)
        if found is None or number is None:
            return op.name
        return f"{found['scope']}{op.type}-{number - sum(n < number for n in self.gone)}"

    def _tensor(self, name: str) -> str:
        while name in self.read:
            name = self.read[name]
        return self.tensors.get(name, name)

    def _op(self, op: Op) -> Op:
        inputs, outputs = (
            tuple((operand, self._tensor(name)) for operand, name in pairs)
            for pairs in (op.inputs, op.outputs)
        )
        return replace(op, name=self.names[op.name], inputs=inputs, outputs=outputs)

    def _kept(self, loss: str | None) -> Iterator[Tensor]:
        for tensor in self.part.tensors:
            if tensor.name not in self.read:
                name = self._tensor(tensor.name)
                yield replace(tensor, name=name, role="loss" if name == loss else tensor.role)

    def _parameter(self, parameter: Parameter) -> Parameter:
        if parameter.gradient is None:
            return parameter
        return replace(parameter, gradient=self._tensor(parameter.gradient))


def _number(op: Op) -> int | None:
    found = _NUMBERED.match(op.name)
    return int(found["number"]) if found else None


def _passed(op: Op) -> str:
    """Return the tensor that a vanished op would have passed on."""
    operands = dict(op.inputs)
    return operands.get("x_0") or operands.get("in_0") or operands["input_tensor_0"]
