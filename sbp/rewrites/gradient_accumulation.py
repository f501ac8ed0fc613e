"""Micro-batches in a program: sums of gradients, and buffers for what the backward pass reads.

OneFlow sums up each gradient in a result of its own; what happens behind it happens once per step. In a
stage with several micro-batches in flight each forward result that the backward pass reads goes
through a buffer, and there is no chain of tasks from the forward pass to the backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.state import NdSbp

BUFFER, SUM = "identity_buffer", "acc"
"""The types of ops for micro-batches in flight, and for sums of gradients."""


def summed(layout: Layout) -> Layout:
    """Return the layout of a program with an op behind every parameter's gradient that sums it up.

    Redistributions of the sums are left out: they come one after another at the end of a step, in
    memory that is free then.
    """
    program = layout.program
    gradients = {
        p.gradient: p.update
        for p in program.parameters
        if p.gradient in program.producer and p.update is not None
    }
    made = layout.made
    ops: list[Op] = []
    tensors: list[Tensor] = []
    signatures = dict(layout.signatures)
    for op in program.ops:
        if op.name in gradients.values():
            inputs = tuple((o, f"{SUM} {t}" if t in gradients else t) for o, t in op.inputs)
            op = replace(op, inputs=inputs)
        ops.append(op)
        for _, name in op.outputs:
            if name in gradients:
                total = f"{SUM} {name}"
                pairs = (("in_0", name),), (("out_0", total),)
                ops.append(Op(total, SUM, *pairs, phase="backward"))
                tensors.append(replace(program.tensor[name], name=total))
                signatures[total] = {"in_0": made[name], "out_0": made[name]}
    known = {t.name for t in tensors}
    parameters = tuple(
        replace(p, gradient=f"{SUM} {p.gradient}") if f"{SUM} {p.gradient}" in known else p
        for p in program.parameters
    )
    changed = replace(
        program, ops=tuple(ops), tensors=(*program.tensors, *tensors), parameters=parameters
    )
    kept = [r for r in layout.redistributions if not _only_updates(program, r)]
    return Layout.of(changed, signatures, layout.variables, layout.inputs, kept, layout.after)


def _only_updates(program: Program, item: Redistribution) -> bool:
    ops = [program.op.get(name) for name, _ in item.readers]
    return all(op is not None and op.phase == "optimizer" for op in ops)


def buffered(layout: Layout) -> Layout:
    """Return the layout of a program with a buffer for each forward result that its backward pass reads.

    A redistribution that the forward pass reads, too, is buffered in its last state.
    """
    return _Buffering(layout).make()


class _Buffering:
    def __init__(self, layout: Layout) -> None:
        self.program, self.layout, self.made = layout.program, layout, layout.made
        program = layout.program
        self.phase = {op.name: op.phase for op in program.ops}
        self.signatures = dict(layout.signatures)
        self.behind: dict[str, list[Op]] = {}  # buffers by the tensor that they hold
        self.tensors: list[Tensor] = []
        self.read: dict[tuple[str, str], str] = {}

    def make(self) -> Layout:
        held = self.layout
        redistributions = [m for r in self.layout.redistributions for m in self._moved(r)]
        boxed = {reader for r in self.layout.redistributions for reader in r.readers}
        for op in self.program.ops:
            if op.phase == "backward":
                for operand, tensor in op.inputs:
                    if (op.name, operand) not in boxed and self._is_forward(tensor):
                        self.read[op.name, operand] = self._buffer(tensor, self.made[tensor], "")
        ops = [op for name in self.program.inputs for op in self.behind.get(name, ())]
        for op in self.program.ops:
            ops.append(self._reading(op))
            ops += [b for _, name in op.outputs for b in self.behind.get(name, ())]
        program = replace(
            self.program, ops=tuple(ops), tensors=(*self.program.tensors, *self.tensors)
        )
        return Layout.of(
            program, self.signatures, held.variables, held.inputs, redistributions, held.after
        )

    def _is_forward(self, tensor: str) -> bool:
        producer = self.program.producer.get(tensor)
        if producer is None:
            return tensor in self.program.inputs
        return producer.phase == "forward"

    def _moved(self, item: Redistribution) -> list[Redistribution]:
        back = tuple(r for r in item.readers if self.phase.get(r[0]) == "backward")
        if not back or not self._is_forward(item.tensor):
            return [item]
        others = tuple(r for r in item.readers if r not in back)
        if not others:
            held = self._buffer(item.tensor, self.made[item.tensor], "")
            self.read |= dict.fromkeys(back, held)
            return [Redistribution(held, item.path, back)]
        state = item.path[-1]
        held = self._buffer(item.tensor, state, f" {state}")
        self.read |= dict.fromkeys(back, held)
        return [Redistribution(item.tensor, item.path, (*others, (held, "in_0")))]

    def _buffer(self, tensor: str, state: NdSbp, suffix: str) -> str:
        name = f"{BUFFER} {tensor}{suffix}"
        if name not in self.signatures:
            op = Op(name, BUFFER, (("in_0", tensor),), (("out_0", name),), phase="forward")
            self.behind.setdefault(tensor, []).append(op)
            self.tensors.append(replace(self.program.tensor[tensor], name=name))
            self.signatures[name] = {"in_0": state, "out_0": state}
        return name

    def _reading(self, op: Op) -> Op:
        if not any((op.name, operand) in self.read for operand, _ in op.inputs):
            return op
        inputs = tuple((o, self.read.get((op.name, o), t)) for o, t in op.inputs)
        return replace(op, inputs=inputs)
