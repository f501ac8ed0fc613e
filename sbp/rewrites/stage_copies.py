"""Ops of which each stage of a pipeline has its own copy, so that what they make is never sent.

Those draw masks of dropout, of nothing, or cast a parameter: that is sent, once per step, in place of
what the cast makes for every micro-batch. Where dropouts of stages 0, 1 and 2 have one mask, stage 0 has
the ops that draw it, and stages 1 and 2 have copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.ops_and_tensors import STAGE, copy_of
from autoddl.sbp.rewrites.in_parts.whole_masks import is_drawn

Stages = Mapping[str, int]
"""The stages of ops, variables and inputs by name."""


def in_each_stage(
    program: Program, stage_of: Stages, *, casts: bool = False
) -> tuple[Program, Stages]:  # fmt: skip
    """Return a program in which each stage has its own of such ops, and the stages of its ops.

    It is the same program where none is read in several. Parameters are cast in each with `casts`.
    """
    own = [op for op in program.ops if is_drawn(op.name) or (casts and is_own(program, op))]
    if not own:
        return program, stage_of
    names = {op.name for op in own}
    wanted = {op.name: _reading(program, stage_of, op, names) for op in own}
    for op in reversed(own):  # what draws a mask is wanted where that is
        for _, name in op.inputs:
            if name in program.producer:
                wanted[program.producer[name].name] |= wanted[op.name]
    found = {**stage_of, **{name: min(stages) for name, stages in wanted.items() if stages}}
    if all(len(stages) <= 1 for stages in wanted.values()):
        return program, found

    def read(tensor: str, stage: int) -> str:
        made = program.producer.get(tensor)
        apart = made is not None and made.name in names and found[made.name] != stage
        return _copied(tensor, stage) if apart else tensor

    ops: list[Op] = []
    tensors = list(program.tensors)
    for op in program.ops:
        if op.name not in names:
            inputs = tuple((o, read(t, found[op.name])) for o, t in op.inputs)
            ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
            continue
        ops.append(op)
        for stage in sorted(wanted[op.name])[1:]:
            made = {tensor: _copied(tensor, stage) for _, tensor in op.outputs}
            inputs = tuple((o, read(t, stage)) for o, t in op.inputs)
            outputs = tuple((operand, made[tensor]) for operand, tensor in op.outputs)
            name = _copied(op.name, stage)
            ops.append(replace(op, name=name, inputs=inputs, outputs=outputs))
            tensors += [replace(program.tensor[t], name=copy) for t, copy in made.items()]
            found[name] = stage
    return replace(program, ops=tuple(ops), tensors=tuple(tensors)), found


def layout_in_each_stage(layout: Layout, program: Program) -> Layout:
    """Return the layout of what `in_each_stage` has made of the program of another one."""
    if program is layout.program:
        return layout
    signatures = dict(layout.signatures)
    for op in program.ops:
        if op.name not in signatures:
            signatures[op.name] = signatures[copy_of(op.name)]
    moves = [m for item in layout.redistributions for m in _moved(program, item)]
    after = dict(layout.after)
    return Layout.of(program, signatures, layout.variables, layout.inputs, moves, after)


def is_own(program: Program, op: Op | None) -> bool:
    """Tell whether each stage can have its own of an op: one that draws a mask, or casts a parameter."""
    if op is None or is_drawn(op.name):
        return op is not None
    casts = op.type == "cast" and op.phase == "forward"
    return casts and not any(t in program.producer or t in program.inputs for _, t in op.inputs)


def _reading(program: Program, stage_of: Stages, op: Op, own: set[str]) -> set[int]:
    """Return the stages with ops that read what an op makes, but for such ops themselves."""
    readers = (o for _, name in op.outputs for o, _ in program.consumers.get(name, ()))
    return {stage_of[reader.name] for reader in readers if reader.name not in own}


def _copied(name: str, stage: int) -> str:
    return f"{STAGE}{stage}-{name}"


def _moved(program: Program, item: Redistribution) -> Iterator[Redistribution]:
    """Yield a redistribution for what each reader reads now, and for copies of readers."""
    copies = [
        (op.name, operand)
        for op, operand in program.consumers.get(item.tensor, ())
        if op.name.startswith(STAGE) and (copy_of(op.name), operand) in item.readers
    ]
    readers: dict[str, list[tuple[str, str]]] = {}
    for reader in (*item.readers, *copies):
        op = program.op.get(reader[0])
        name = item.tensor if op is None else dict(op.inputs)[reader[1]]
        readers.setdefault(name, []).append(reader)
    for name, some in readers.items():
        yield replace(item, tensor=name, readers=tuple(some))
