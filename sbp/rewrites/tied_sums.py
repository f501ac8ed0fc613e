"""Gradients of parameters that several stages read: each sums up its own, and the sums are added once.

A table that the first and the last stage read (an embedding and the head that is tied to it) has two
gradients, which are added for each micro-batch, so that one of them crosses the pipeline as often. Sums
may be added in any order, so here each stage sums up its own over all micro-batches, and one result
crosses, once per step:

    sum over m of (a_m + b_m)  =  sum over m of a_m  +  sum over m of b_m

The op that adds then belongs to the optimizer's pass, and what it reads is summed up before, as the
gradients of other parameters are. Megatron-LM does the same by an all-reduce between both stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoddl.sbp.program import Op, Program

_ADDS = "add_n"


def tied_sums(program: Program) -> Iterator[Op]:
    """Yield the ops that add the gradients of parameters, which only the optimizer's pass reads."""
    for parameter in program.parameters:
        made = program.producer.get(parameter.gradient or "")
        if made is None or made.type != _ADDS or made.phase == "forward":
            continue
        readers = program.consumers.get(parameter.gradient or "", ())
        alone = all(len(program.consumers[tensor]) == 1 for _, tensor in made.inputs)
        makers = [program.producer.get(tensor) for _, tensor in made.inputs]
        backward = all(op is not None and op.phase == "backward" for op in makers)
        if alone and backward and all(op.phase == "optimizer" for op, _ in readers):
            yield made


def sums_once(program: Program, stage_of: Mapping[str, int]) -> Program:
    """Return a program that adds gradients from several stages once per step; the same if none come so."""
    late = {op.name for op in tied_sums(program) if op.phase == "backward" and _meet(program, stage_of, op)}
    if not late:
        return program
    ops = (replace(op, phase="optimizer") if op.name in late else op for op in program.ops)
    return replace(program, ops=tuple(ops))


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
    return len({stage_of[program.producer[tensor].name] for _, tensor in op.inputs}) > 1
