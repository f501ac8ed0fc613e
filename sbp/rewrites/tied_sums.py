"""Gradients of parameters that several stages read: each sums up its own, and the sums are added once.

A table that the first and the last stage read (an embedding and the head that is tied to it) has two
gradients, which are added for each micro-batch, so that one of them crosses the pipeline as often. Sums
may be added in any order, so here each stage sums up its own over all micro-batches, and one result
crosses, once per step:

    sum over m of (a_m + b_m)  =  sum over m of a_m  +  sum over m of b_m

The op that adds then belongs to the optimizer's pass, and what it reads is summed up before, as the
gradients of other parameters are. In mixed precision the sum is cast; then what is added is cast before,
so that all is summed up in the precision of the parameter. Megatron-LM does the same by an all-reduce
between both stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from autoddl.sbp.layout import Layout, Path, Reader, Redistribution
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.ops_and_tensors import TIED, copy_of

_ADDS, _CASTS = "add_n", "cast"


class TiedSum(NamedTuple):
    """An op that adds the gradients of a parameter, and the op that casts the sum, if one does."""

    adds: Op
    casts: Op | None

    @property
    def names(self) -> set[str]:
        """Return the names of both."""
        return {op.name for op in self if op is not None}


def tied_sums(program: Program) -> Iterator[TiedSum]:
    """Yield the sums of gradients of parameters that only the optimizer's pass reads."""
    for parameter in program.parameters:
        made, casts = program.producer.get(parameter.gradient or ""), None
        readers = program.consumers.get(parameter.gradient or "", ())
        if made is not None and made.type == _CASTS and made.phase == "backward":
            ((_, read),) = made.inputs
            casts, made = made, program.producer.get(read)
            if len(program.consumers[read]) > 1:
                continue
        if made is None or made.type != _ADDS or made.phase == "forward":
            continue
        alone = all(len(program.consumers[tensor]) == 1 for _, tensor in made.inputs)
        makers = [program.producer.get(tensor) for _, tensor in made.inputs]
        backward = all(op is not None and op.phase == "backward" for op in makers)
        if alone and backward and all(op.phase == "optimizer" for op, _ in readers):
            yield TiedSum(made, casts)


def sums_once(
    program: Program, stage_of: Mapping[str, int]
) -> tuple[Program, Mapping[str, int]]:  # fmt: skip
    """Return a program that adds gradients from several stages once per step, and its ops' stages.

    It is the same program if none come so.
    """
    late = {
        one.adds.name: one
        for one in tied_sums(program)
        if one.adds.phase == "backward" and _meet(program, stage_of, one.adds)
    }
    if not late:
        return program, stage_of
    casts = {one.casts.name: one.adds for one in late.values() if one.casts is not None}
    found, ops = dict(stage_of), list[Op]()
    tensors, renamed = dict(program.tensor), dict[str, str]()
    for op in program.ops:
        if op.name in casts:  # comes before the sum
            renamed[op.outputs[0][1]] = casts[op.name].outputs[0][1]
        elif op.name in late:
            cast = late[op.name].casts
            if cast is not None:
                before = list(_casts_before(op, cast))
                ops += before
                for (_, read), one in zip(op.inputs, before, strict=True):
                    tensors[one.outputs[0][1]] = replace(
                        tensors[cast.outputs[0][1]], name=one.outputs[0][1]
                    )
                    found[one.name] = stage_of[program.producer[read].name]
                ((_, made),) = op.outputs
                tensors[made] = replace(tensors.pop(cast.outputs[0][1]), name=made)
                reads = [one.outputs[0][1] for one in before]
                names = [operand for operand, _ in op.inputs]
                op = replace(op, inputs=tuple(zip(names, reads, strict=True)))
            ops.append(replace(op, phase="optimizer"))
        else:
            inputs = tuple((operand, renamed.get(t, t)) for operand, t in op.inputs)
            ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
    parameters = tuple(
        replace(p, gradient=renamed.get(p.gradient or "", p.gradient)) for p in program.parameters
    )
    changed = replace(
        program, ops=tuple(ops), tensors=tuple(tensors.values()), parameters=parameters
    )
    return changed, found


def layout_with_sums(layout: Layout, program: Program) -> Layout:
    """Return the layout of what `sums_once` has made of the program of another one."""
    if program is layout.program:
        return layout
    signatures, made = dict(layout.signatures), layout.made
    moved: dict[Reader, str] = {}  # what readers of another tensor read now
    sums: dict[str, str] = {}  # by what a cast made what the sum before it does
    for op in program.ops:
        if op.name.startswith(TIED):
            ((operand, read),), ((result, name),) = op.inputs, op.outputs
            signatures[op.name] = {operand: made[read], result: made[read]}
            ((reader, place),) = program.consumers[name]
            moved[reader.name, place] = name
            sums[copy_of(name)] = reader.outputs[0][1]
    paths: dict[str, Path] = {
        item.tensor: item.path
        for item in layout.redistributions
        if item.tensor in sums.values()  # of sums before their casts
    }
    items: list[Redistribution] = []
    for item in layout.redistributions:
        if item.tensor in paths:
            continue
        if item.tensor in sums:
            total = sums[item.tensor]
            items.append(replace(item, tensor=total, path=(*paths.get(total, ()), *item.path)))
        else:
            name = moved.get(item.readers[0], item.tensor)
            items.append(replace(item, tensor=name))
    boxed = {reader for item in items for reader in item.readers}
    for total, path in paths.items():
        left = tuple(
            (op.name, operand)
            for op, operand in program.consumers.get(total, ())
            if (op.name, operand) not in boxed
        )
        items += [Redistribution(total, path, left)] if left else []
    after = dict(layout.after)
    return Layout.of(program, signatures, layout.variables, layout.inputs, items, after)


def is_late(op: Op) -> bool:
    """Tell whether an op adds gradients once per step."""
    return op.type == _ADDS and op.phase == "optimizer"


def accumulated(program: Program) -> Iterator[str]:
    """Yield the gradients that are summed up over micro-batches."""
    for parameter in program.parameters:
        made = program.producer.get(parameter.gradient or "")
        if made is not None and parameter.gradient is not None:
            yield from [t for _, t in made.inputs] if is_late(made) else [parameter.gradient]


def _meet(program: Program, stage_of: Mapping[str, int], op: Op) -> bool:
    """Tell whether an op reads what several stages make."""
    return len({stage_of[program.producer[tensor].name] for _, tensor in op.inputs}) > 1


def _casts_before(adds: Op, cast: Op) -> Iterator[Op]:
    """Yield copies of a cast, one for each tensor that is added."""
    ((operand, _),), ((result, made),) = cast.inputs, cast.outputs
    for number, (_, read) in enumerate(adds.inputs):
        prefix = f"{TIED}{number}-"
        yield replace(
            cast,
            name=prefix + cast.name,
            inputs=((operand, read),),
            outputs=((result, prefix + made),),
        )
