"""Micro-batches in a program: sums and means of gradients, buffers for what the backward pass reads.

OneFlow sums up each gradient in a result of its own; what happens behind it happens once per step: a
mean is made of each sum, redistributed, and read by the update. In a stage with several micro-batches in
flight each forward result that the backward pass reads goes through a buffer, and there is no chain of
tasks from the forward pass to the backward pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rewrites.stage_program import DEPARTURE
from autoddl.sbp.rewrites.tied_sums import is_late
from autoddl.sbp.state import NdSbp

BUFFER, SUM, SCALE = "identity_buffer", "acc", "scalar_mul"
"""The types of ops for micro-batches in flight, for sums of gradients, and for their means."""


def summed(layout: Layout) -> Layout:
    """Return the layout of a program with two ops behind every parameter's gradient.

    One sums it up over the micro-batches, one makes a mean of the sum, once per step; updates read that.
    """
    program = layout.program
    gradients: dict[str, str] = {}
    for parameter in program.parameters:
        if parameter.gradient in program.producer and parameter.update is not None:
            gradients[parameter.gradient or ""] = parameter.update
    for gradient in [name for name in gradients if is_late(program.producer[name])]:
        del gradients[gradient]  # its parts are summed up
    gradients |= {
        tensor: op.name
        for op in program.ops
        if is_late(op) or (op.type == DEPARTURE and op.phase == "optimizer")
        for _, tensor in op.inputs
        if tensor in program.producer and program.producer[tensor].phase == "backward"
    }
    means = {gradient: f"mean {gradient}" for gradient in gradients}
    updates, made = set(gradients.values()), layout.made
    ops: list[Op] = []
    tensors: list[Tensor] = []
    signatures = dict(layout.signatures)
    for op in program.ops:
        if op.name in updates:
            op = replace(op, inputs=tuple((o, means.get(t, t)) for o, t in op.inputs))
        ops.append(op)
        for name in [name for _, name in op.outputs if name in gradients]:
            read = name
            for kind, phase, result in (
                (SUM, "backward", f"{SUM} {name}"), (SCALE, "optimizer", means[name])
            ):  # fmt: skip
                pairs = (("in_0", read),), (("out_0", result),)
                ops.append(Op(result, kind, *pairs, phase=phase))
                tensors.append(replace(program.tensor[name], name=result))
                signatures[result] = {"in_0": made[name], "out_0": made[name]}
                read = result
    parameters = tuple(
        replace(p, gradient=means.get(p.gradient or "", p.gradient)) for p in program.parameters
    )
    changed = replace(
        program, ops=tuple(ops), tensors=(*program.tensors, *tensors), parameters=parameters
    )
    moves = [each for r in layout.redistributions for each in _of_means(r, means, updates)]
    after = {**layout.after, **_behind_readers(program)}
    return Layout.of(changed, signatures, layout.variables, layout.inputs, moves, after)


def _behind_readers(program: Program) -> dict[str, str]:
    """Return what makes a variable's gradient with the last op of the backward pass that reads it.

    An update waits for all sums of gradients only, and writes over its variable; so the engine lets
    gradients come last.
    """
    found: dict[str, str] = {}
    for parameter in program.parameters:
        made = program.producer.get(parameter.gradient or "")
        readers = [op for op, _ in program.consumers.get(parameter.tensor, ())]
        back = [op.name for op in readers if op.phase == "backward" and op is not made]
        if made is not None and back:
            found[made.name] = back[-1]
    return found


def _of_means(
    item: Redistribution, means: Mapping[str, str], updates: Collection[str]
) -> Iterator[Redistribution]:
    """Yield a redistribution of a gradient for its update and for others; the first is of the mean."""
    late = tuple(r for r in item.readers if item.tensor in means and r[0] in updates)
    others = tuple(r for r in item.readers if r not in late)
    if late:
        yield Redistribution(means[item.tensor], item.path, late)
    if others:
        yield replace(item, readers=others)


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
