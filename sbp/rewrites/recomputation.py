"""Activation checkpointing: forward results that are dropped and computed again for the backward pass.

A program that was captured from a graph with checkpointing has these ops already. Here they are added
to one without.

Source: OneFlow 0.9, core/job_rewriter/checkpointing_pass.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.ops_and_tensors import RANDOM
from autoddl.sbp.rules.registry import written

PREFIX = "Sys-Checkpointing-Fake-Fw-Op_"


def can_repeat(op: Op) -> bool:
    """Tell whether an op can be run once more with the same results: it draws and writes nothing."""
    return op.type not in RANDOM and not written(op)


def recomputed(layout: Layout, dropped: Collection[str]) -> Layout:
    """Return the layout of a program whose backward pass makes the tensors `dropped` once more.

    Names that no forward op makes, or that no backward op reads, have no effect. The second
    computation starts after the last result that its first reader in the backward pass waits for.
    """
    program = layout.program
    again = {
        op.name
        for name in dropped
        if name in program.producer
        for op in (program.producer[name],)
        if op.phase == "forward"
    }
    if not again:
        return layout
    made = {name for op in program.ops if op.name in again for _, name in op.outputs}
    readers = [op for op in program.ops if op.phase != "forward" and made & _read(op)]
    if not readers:
        return layout
    copies = [_copy(op, made) for op in program.ops if op.name in again]
    ops: list[Op] = []
    for op in program.ops:
        if op is readers[0]:
            ops += copies
        ops.append(op if op.phase == "forward" else _reading_copies(op, made))
    tensors = [replace(program.tensor[n], name=PREFIX + n) for op in copies for n in _originals(op)]
    changed = replace(program, ops=tuple(ops), tensors=(*program.tensors, *tensors))
    trigger = _last_awaited(program, readers[0], made)
    copied = {op.name: layout.signatures[op.name.removeprefix(PREFIX)] for op in copies}
    moved = [m for r in layout.redistributions for m in _split(program, r, again, made)]
    late = dict.fromkeys((op.name for op in copies), trigger) if trigger else {}
    after = {**layout.after, **late}
    signatures = {**layout.signatures, **copied}
    return Layout.of(changed, signatures, layout.variables, layout.inputs, moved, after)


def _read(op: Op) -> set[str]:
    return {name for _, name in op.inputs}


def _originals(copy: Op) -> Iterator[str]:
    yield from (name.removeprefix(PREFIX) for _, name in copy.outputs)


def _reading_copies(op: Op, made: Collection[str]) -> Op:
    return replace(op, inputs=tuple((o, PREFIX + t if t in made else t) for o, t in op.inputs))


def _copy(op: Op, made: Collection[str]) -> Op:
    outputs = tuple((o, PREFIX + t) for o, t in op.outputs)
    copy = _reading_copies(op, made)
    return replace(copy, name=PREFIX + op.name, outputs=outputs, phase="backward")


def _last_awaited(program: Program, reader: Op, made: Collection[str]) -> str | None:
    """Return the op that makes the last result, in program order, that a reader also needs."""
    place = {op.name: i for i, op in enumerate(program.ops)}
    others = [program.producer[t].name for t in _read(reader) - set(made) if t in program.producer]
    return max(others, key=place.__getitem__, default=None)


def _split(
    program: Program, old: Redistribution, again: Collection[str], made: Collection[str]
) -> Iterator[Redistribution]:
    """Yield the redistributions of a tensor and of its copy: forward readers have the tensor."""
    kept, moved = list(old.readers), []
    if old.tensor in made:
        kept = [
            r for r in old.readers if r[0] not in program.op or program.op[r[0]].phase == "forward"
        ]
        moved = [r for r in old.readers if r not in kept]
    copies = [(PREFIX + op, operand) for op, operand in old.readers if op in again]
    (moved if old.tensor in made else kept).extend(copies)
    if kept:
        yield Redistribution(old.tensor, old.path, tuple(kept))
    if moved:
        yield Redistribution(PREFIX + old.tensor, old.path, tuple(moved))
