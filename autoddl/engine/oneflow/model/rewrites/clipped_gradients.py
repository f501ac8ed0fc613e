"""What a step keeps between gradients and updates: results of clipping, and of decay that is added.

In a program updates read gradients; OneFlow makes another tensor of each in between, in the state of
the update, and all of them are there at once, since the norm is one of all gradients:

    g (S0) → update     becomes     g (S0) → clip → update
"""

from __future__ import annotations

from dataclasses import replace

from autoddl.sbp.layout import Layout
from autoddl.sbp.program import Op, Tensor
from autoddl.sbp.program.ops_and_tensors import ParameterGroup

CLIP, DECAY = "autoddl clip", "autoddl decay"
"""The types of the ops that stand for OneFlow's, which no rule and no kernel has."""


def chained(layout: Layout) -> Layout:
    """Return the layout of a program with an op for each that a gradient goes through to its update."""
    program = layout.program
    kinds = {name: _kinds(group) for group in program.groups for name in group.parameters}
    moved: dict[tuple[str, str], tuple[str, str]] = {}  # readers of gradients
    before: dict[str, list[Op]] = {}  # by update
    tensors: list[Tensor] = []
    signatures = dict(layout.signatures)
    for parameter in program.parameters:
        update, name = parameter.update, parameter.gradient
        if update is None or name is None or not kinds.get(parameter.tensor):
            continue
        operand = next(o for o, t in program.op[update].inputs if t == name)
        state = signatures[update][operand]
        for kind in kinds[parameter.tensor]:
            op = Op(f"{kind} {name}", kind, (("in_0", name),), (("out_0", f"{kind} {name}"),))
            before.setdefault(update, []).append(replace(op, phase="optimizer"))
            signatures[op.name] = {"in_0": state, "out_0": state}
            name = op.name
            tensors.append(replace(program.tensor[parameter.gradient or ""], name=name))
        moved[update, operand] = before[update][0].name, "in_0"
    if not moved:
        return layout
    kept = [
        replace(r, readers=tuple(moved.get(reader, reader) for reader in r.readers))
        for r in layout.redistributions
    ]
    changed = replace(
        program,
        ops=tuple(one for op in program.ops for one in _with(op, before, moved)),
        tensors=(*program.tensors, *tensors),
    )
    return Layout.of(changed, signatures, layout.variables, layout.inputs, kept, layout.after)


def _kinds(group: ParameterGroup) -> tuple[str, ...]:
    return (CLIP,) * bool(group.clip) + (DECAY,) * bool(group.weight_decay)


def _with(
    op: Op, before: dict[str, list[Op]], moved: dict[tuple[str, str], tuple[str, str]]
) -> list[Op]:
    """Return what an update's gradient goes through, and the update that reads the last of it."""
    chain = before.get(op.name, [])
    if not chain:
        return [op]
    read = chain[-1].outputs[0][1]
    inputs = tuple((o, read if (op.name, o) in moved else t) for o, t in op.inputs)
    return [*chain, replace(op, inputs=inputs)]
