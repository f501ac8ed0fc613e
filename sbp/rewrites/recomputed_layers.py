"""Recomputed layers: of each layer only its result is kept, all else is made again for the backward pass.

A layer is one of a numbered list of modules ("model.blocks.3"). Results of its forward ops that other
layers or the graph's outputs read are kept; so is what draws random numbers or writes, as masks of
dropout. Of all others those that the backward pass reads are made once more, just before it does: copies
wait for the last of what their first reader waits for besides, or memory would not be freed.

    y = x @ w; z = relu(y); r = z + x      in layer 0, of which layer 1 reads r
    dz, dx = …; dy = relu_grad(dz, y)      becomes      y' = x @ w after dz; dy = relu_grad(dz, y')

and z' = relu(y') only if the backward pass reads z.

Source: Chen et al. 2016 (Training deep nets with sublinear memory cost); OneFlow 0.9,
core/job_rewriter/checkpointing_pass.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.blocks import layer_path, numbered
from autoddl.sbp.program.ops_and_tensors import AGAIN
from autoddl.sbp.rewrites.recomputation import PREFIX as CAPTURED
from autoddl.sbp.rewrites.recomputation import can_repeat


def recomputes(program: Program) -> bool:
    """Tell whether a program is what `in_layers` has made of another one."""
    return any(op.name.startswith(AGAIN) for op in program.ops)


def layers_of(program: Program) -> dict[str, list[Op]]:
    """Return the forward ops of each layer."""
    found: dict[str, list[Op]] = {}
    for op in program.ops:
        if op.phase == "forward" and numbered(op.module) is not None:
            found.setdefault(layer_path(op.module), []).append(op)
    return found


def layers_again(program: Program) -> list[str]:
    """Return the layers of which a program makes something again, the first of the forward pass first."""
    found = {layer_path(op.module) for op in program.ops if op.name.startswith(AGAIN)}
    return [layer for layer in layers_of(program) if layer in found]


def kept_by_modules(program: Program) -> list[tuple[str, int]]:
    """Return modules with the bytes that the backward pass reads of their results, the most first.

    They are those that could be made again, whole as on one device.
    """
    sizes: dict[str, int] = {}
    for op in program.ops:
        if op.phase == "forward" and op.module and can_repeat(op):
            for _, name in op.outputs:
                readers = program.consumers.get(name, ())
                if any(reader.phase != "forward" for reader, _ in readers):
                    size = program.tensor[name].size_bytes
                    sizes[op.module] = sizes.get(op.module, 0) + size
    return sorted(sizes.items(), key=lambda item: -item[1])


def ops_again(program: Program) -> list[str]:
    """Return the forward ops that a program runs again, by their own names."""
    return [op.name.removeprefix(AGAIN) for op in program.ops if op.name.startswith(AGAIN)]


def in_layers(program: Program, only: Collection[str] | None = None) -> Program:
    """Return a program whose layers are computed again, of all their ops or `only` of these.

    It is the same if it has none, or was captured so.
    """
    if any(op.name.startswith(CAPTURED) for op in program.ops):
        return program
    every = {
        op.name: op
        for ops in layers_of(program).values()
        for op in _copied(program, ops)
        if only is None or op.name in only
    }
    if not every:
        return program
    made = {name for op in every.values() for _, name in op.outputs}
    waiting: dict[str, list[Op]] = {}  # by layer what is made again, until its first reader comes
    for op in every.values():
        waiting.setdefault(layer_path(op.module), []).append(op)
    layer_of = {name: layer_path(op.module) for op in every.values() for _, name in op.outputs}
    ops: list[Op] = []
    for op in program.ops:
        if op.phase == "forward":
            ops.append(op)
            continue
        for layer in dict.fromkeys(layer_of[name] for _, name in op.inputs if name in made):
            ops += [_copy(one, made) for one in waiting.pop(layer, ())]
        ops.append(_reading(op, made))
    tensors = [replace(program.tensor[name], name=AGAIN + name) for name in layer_of]
    return replace(program, ops=tuple(ops), tensors=(*program.tensors, *tensors))


def with_nothing_again(program: Program) -> Program:
    """Return the program of which `in_layers` has made another one."""
    ops = [
        replace(op, inputs=tuple((o, name.removeprefix(AGAIN)) for o, name in op.inputs))
        for op in program.ops
        if not op.name.startswith(AGAIN)
    ]
    tensors = [tensor for tensor in program.tensors if not tensor.name.startswith(AGAIN)]
    return replace(program, ops=tuple(ops), tensors=tuple(tensors))


def _copied(program: Program, layer: Sequence[Op]) -> Iterator[Op]:
    """Yield what is made again of a layer: what the backward pass reads, and what that takes."""
    inside = {op.name for op in layer}
    outputs = {*program.outputs, program.loss}
    dropped: dict[str, Op] = {}
    for op in layer:
        names = [name for _, name in op.outputs]
        kept = outputs.intersection(names) or any(
            reader.phase == "forward" and reader.name not in inside
            for name in names
            for reader, _ in program.consumers.get(name, ())
        )
        if can_repeat(op) and not kept:
            dropped |= dict.fromkeys(names, op)
    wanted = [
        name
        for name in dropped
        if any(reader.phase != "forward" for reader, _ in program.consumers.get(name, ()))
    ]
    again: set[str] = set()
    while wanted:
        op = dropped[wanted.pop()]
        if op.name not in again:
            again.add(op.name)
            wanted += [name for _, name in op.inputs if name in dropped]
    yield from (op for op in layer if op.name in again)


def _copy(op: Op, made: Collection[str]) -> Op:
    outputs = tuple((operand, AGAIN + name) for operand, name in op.outputs)
    return replace(_reading(op, made), name=AGAIN + op.name, outputs=outputs, phase="backward")


def _reading(op: Op, made: Collection[str]) -> Op:
    inputs = tuple((operand, AGAIN + name if name in made else name) for operand, name in op.inputs)
    return op if inputs == op.inputs else replace(op, inputs=inputs)
