"""Masks that several stages of a pipeline read: each of these draws its own, and none is sent.

A mask is drawn of nothing, so it costs less to draw it once more than to send it. Where dropouts of
stages 0, 1 and 2 have one mask, stage 0 has the ops that draw it, and stages 1 and 2 have copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rewrites.in_parts.whole_masks import PREFIX, has_whole_masks

Stages = Mapping[str, int]
"""The stages of ops, variables and inputs by name."""


def in_each_stage(program: Program, stage_of: Stages) -> tuple[Program, Stages]:
    """Return a program in which each stage draws the masks that it reads, and the stages of its ops.

    It is the same program where none is read in several.
    """
    if not has_whole_masks(program):
        return program, stage_of
    drawing = [op for op in program.ops if is_drawn(op)]
    wanted = {op.name: _reading(program, stage_of, op) for op in drawing}
    for op in reversed(drawing):  # what draws a mask is wanted where that is
        for _, name in op.inputs:
            wanted[program.producer[name].name] |= wanted[op.name]
    found = {**stage_of, **{name: min(stages) for name, stages in wanted.items()}}
    if all(len(stages) == 1 for stages in wanted.values()):
        return program, found
    ops: list[Op] = []
    tensors = list(program.tensors)
    for op in program.ops:
        if not is_drawn(op):
            inputs = tuple((o, _of_stage(program, found, t, found[op.name])) for o, t in op.inputs)
            ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
            continue
        ops.append(op)
        for stage in sorted(wanted[op.name])[1:]:
            inputs, outputs = (
                tuple((operand, _copied(name, stage)) for operand, name in operands)
                for operands in (op.inputs, op.outputs)
            )
            name = _copied(op.name, stage)
            ops.append(replace(op, name=name, inputs=inputs, outputs=outputs))
            tensors += [replace(program.tensor[t], name=_copied(t, stage)) for _, t in op.outputs]
            found[name] = stage
    return replace(program, ops=tuple(ops), tensors=tuple(tensors)), found


def layout_in_each_stage(layout: Layout, program: Program, stage_of: Stages) -> Layout:
    """Return the layout of what `in_each_stage` has made of the program of another one."""
    if program is layout.program:
        return layout
    signatures = dict(layout.signatures)
    for op in program.ops:
        if op.name not in signatures:
            signatures[op.name] = signatures[drawn_as(op.name)]
    moves = [m for item in layout.redistributions for m in _moved(layout.program, stage_of, item)]
    after = dict(layout.after)
    return Layout.of(program, signatures, layout.variables, layout.inputs, moves, after)


def is_drawn(op: Op | None) -> bool:
    """Tell whether an op takes part in drawing a mask, so that each stage can have its own."""
    return op is not None and op.name.startswith(PREFIX)


def drawn_as(name: str) -> str:
    """Return the op or tensor of which one is the copy in a stage; the same of one that is none."""
    number, _, rest = name.removeprefix(PREFIX).partition("-")
    return PREFIX + rest if name.startswith(PREFIX) and number.isdigit() else name


def _reading(program: Program, stage_of: Stages, op: Op) -> set[int]:
    """Return the stages with ops that read what an op makes, but to draw masks of it."""
    readers = (o for _, name in op.outputs for o, _ in program.consumers.get(name, ()))
    return {stage_of[reader.name] for reader in readers if not is_drawn(reader)}


def _of_stage(program: Program, stage_of: Stages, tensor: str, stage: int) -> str:
    """Return what a stage reads in place of a tensor."""
    made = program.producer.get(tensor)
    if made is None or not is_drawn(made) or stage_of[made.name] == stage:
        return tensor
    return _copied(tensor, stage)


def _copied(name: str, stage: int) -> str:
    return f"{PREFIX}{stage}-{name.removeprefix(PREFIX)}"


def _moved(program: Program, stage_of: Stages, item: Redistribution) -> Iterator[Redistribution]:
    """Yield a redistribution for each stage that has its own of what is moved."""
    readers: dict[str, list[tuple[str, str]]] = {}
    for reader in item.readers:
        name = item.tensor
        if is_drawn(program.producer.get(name)):
            name = _of_stage(program, stage_of, name, stage_of[reader[0]])
        readers.setdefault(name, []).append(reader)
    for name, some in readers.items():
        yield replace(item, tensor=name, readers=tuple(some))
