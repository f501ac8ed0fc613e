"""The program of one stage of a pipeline, with its layout: the ops of the stage, and what arrives.

Of x → a → y → b with b in stage 1, that stage has the ops `arrival y`, which makes y, and b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoddl.sbp.layout import Layout
from autoddl.sbp.program import Op
from autoddl.sbp.state import NdSbp

ARRIVAL = "arrival"
"""The type of ops for what comes from another stage."""


def stage_layout(
    layout: Layout, stage_of: Mapping[str, int], stage: int, arrivals: Mapping[str, NdSbp]
) -> Layout:
    """Return what one stage runs; `arrivals` are the states of the tensors that it gets from others.

    Tensors from other stages are made by ops that read nothing.
    """
    program = layout.program
    ops = [op for op in program.ops if stage_of[op.name] == stage]
    made = {name for op in ops for _, name in op.outputs}
    used = {name for op in ops for _, name in op.operands}
    held = {n for n in (*layout.variables, *layout.inputs) if stage_of.get(n) == stage} & (
        used | set(layout.variables)
    )
    come = [name for name in arrivals if name in used and name not in made | held]
    signatures = {op.name: layout.signatures[op.name] for op in ops}
    sources = []
    for name in come:
        phase = program.producer[name].phase if name in program.producer else "forward"
        op = Op(f"arrival {name}", ARRIVAL, (), (("out_0", name),), phase=phase)
        signatures[op.name] = {"out_0": arrivals[name]}
        sources.append(op)
    ordered = _ordered(ops, sources)
    parameters = tuple(p for p in program.parameters if stage_of.get(p.tensor) == stage)
    known = used | held | {t for p in parameters for t in (p.tensor, *p.states)}
    here = replace(
        program,
        ops=tuple(ordered),
        tensors=tuple(t for t in program.tensors if t.name in known),
        inputs=tuple(name for name in program.inputs if name in held),
        outputs=tuple(name for name in program.outputs if name in made),
        parameters=parameters,
        loss=program.loss if program.loss in made else None,
    )
    return Layout.of(
        here,
        signatures,
        {name: state for name, state in layout.variables.items() if stage_of[name] == stage},
        {name: state for name, state in layout.inputs.items() if name in held},
        [r for r in layout.redistributions if any(op in signatures for op, _ in r.readers)],
    )


def _ordered(ops: Sequence[Op], sources: Sequence[Op]) -> list[Op]:
    """Put each arrival before the first op that reads it."""
    waiting = {name: op for op in sources for _, name in op.outputs}
    found = []
    for op in ops:
        for _, name in op.inputs:
            if name in waiting:
                found.append(waiting.pop(name))
        found.append(op)
    return found
