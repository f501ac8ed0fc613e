"""What fills the memory of a plan's device: its largest tensors by role, equal layers together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from autoddl.explain.layer_rows import GRAPH, joined
from autoddl.explain.words import axis_names, plural
from autoddl.plan.parts import Part
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import pattern
from autoddl.sbp.program.live_across import kept_tensors
from autoddl.sbp.shards import local_bytes

PARAMETER, STATE, GRADIENT = "parameter", "optimizer state", "gradient"
ACTIVATION, INPUT = "activation", "input"
MOST_TOLD = 5


@dataclass(frozen=True)
class Holding:
    """Tensors of one role in equal layers: "model.blocks.0 … 23.fc1.weight (24 times)".

    They take `size_bytes` of a device, all together.
    """

    role: str
    name: str
    size_bytes: int


def parameter_bytes(program: Program, devices: int) -> int:
    """Return what parameters and their optimizer states take of some device at least.

    That is so if they are cut over all devices; gradients may be gone when others are made.
    """
    held = [name for p in program.parameters for name in (p.tensor, *p.states)]
    whole = sum(program.tensor[name].size_bytes for name in dict.fromkeys(held))
    return math.ceil(whole / devices)


def fullest(plan: PlanValue) -> Part:
    """Return the part of a plan whose devices need most."""
    return max(plan.parts, key=lambda part: part.memory_bytes)


def largest(plan: PlanValue, most: int = MOST_TOLD) -> tuple[Holding, ...]:
    """Return the largest that the fullest device of a plan holds across a step, the largest first."""
    sizes = defaultdict[tuple[str, ...], int](int)
    names = defaultdict[tuple[str, ...], list[str]](list)
    for role, name, of, size in _held(plan, fullest(plan)):
        key = role, pattern(name), of
        sizes[key] += size
        if name not in names[key]:
            names[key].append(name)
    order = sorted(sizes, key=lambda key: -sizes[key])[:most]
    return tuple(Holding(key[0], joined(names[key]) + key[2], sizes[key]) for key in order)


def _held(plan: PlanValue, part: Part) -> Iterator[tuple[str, str, str, int]]:
    """Yield of each tensor its role, its module or own name, what else it is called, and its bytes."""
    program, layout, cuts = plan.program, part.layout, part.mesh.cuts
    owner = {state: p.tensor for p in program.parameters for state in p.states}
    summed = {p.gradient: p.tensor for p in program.parameters}
    for name, state in layout.variables.items():
        role = STATE if name in owner else PARAMETER
        yield role, owner.get(name, name), "", local_bytes(program.tensor[name], state, cuts)
    for name, state in layout.inputs.items():
        size = local_bytes(program.tensor[name], state, cuts) * part.in_flight
        yield INPUT, name, "", size
    for tensor in sorted(kept_tensors(program)):
        op = program.producer.get(tensor)
        if op is None or op.name not in layout.signatures:
            continue
        operand = next(o for o, t in op.outputs if t == tensor)
        size = local_bytes(program.tensor[tensor], layout.signatures[op.name][operand], cuts)
        if tensor in summed:
            yield GRADIENT, summed[tensor], "", size
        else:
            flying = 1 if part.recomputed else part.in_flight
            yield ACTIVATION, op.module or GRAPH, f": {op.type}", size * flying


def states_over(plan: PlanValue) -> str:
    """Return over which axes most of the optimizer states are cut (ZeRO): "nodes and GPUs", or ""."""
    part, tensors = fullest(plan), plan.program.tensor
    states = {name for p in plan.program.parameters for name in p.states}
    kept = part.layout.variables
    held = [(tensors[name].size_bytes, state) for name, state in kept.items() if name in states]
    whole, names = sum(size for size, _ in held), axis_names(part.mesh)
    cut = [
        plural(names[axis])
        for axis in range(part.mesh.ndim)
        if sum(size for size, state in held if state[axis].is_split) > whole / 2
    ]
    return " and ".join(cut)
