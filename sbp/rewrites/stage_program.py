"""The program of one stage of a pipeline, with its layout: its ops, what arrives, and what leaves.

Of x → a → y → b with b in stage 1, stage 0 has a and `departure 0 y`, which reads y; stage 1 has
`arrival y`, which is what the link brings, `arrived y`, which makes y of it, and b. Where stages have
unlike numbers of devices, those with larger shards cut them, or put them together: a result more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoddl.sbp.layout import Layout, Path, Redistribution
from autoddl.sbp.program import Op, Tensor
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp

ARRIVAL, ARRIVED, DEPARTURE = "arrival", "arrived", "departure"
"""The types of ops for what comes from another stage, first as it is sent, and for what goes there."""
CROSSING = (ARRIVAL, ARRIVED, DEPARTURE)


class StageCrossing(NamedTuple):
    """A tensor that leaves or enters a stage in a state, behind the boxings of a `path`.

    `in_pieces` tells whether this stage's shards are larger than those of the other one.
    """

    tensor: str
    state: NdSbp
    in_pieces: bool = False
    path: Path = ()


def stage_layout(
    layout: Layout, stage_of: Mapping[str, int], stage: int,
    entering: Sequence[StageCrossing], leaving: Sequence[StageCrossing] = (),
) -> Layout:  # fmt: skip
    """Return what one stage runs; tensors from other stages are made by ops that read nothing."""
    program = layout.program
    ops = [op for op in program.ops if stage_of[op.name] == stage]
    made = {name for op in ops for _, name in op.outputs}
    used = {name for op in ops for _, name in op.operands}
    held = {n for n in (*layout.variables, *layout.inputs) if stage_of.get(n) == stage} & (
        used | set(layout.variables)
    )
    come = [item for item in entering if item.tensor in used and item.tensor not in made | held]
    crossing = _CrossingOps(layout)
    sources = [crossing.enter(item) for item in come]
    ends = [crossing.leave(item, number) for number, item in enumerate(leaving)]
    signatures = {op.name: layout.signatures[op.name] for op in ops} | crossing.signatures
    ordered = _ordered(ops, sources, ends)
    parameters = tuple(p for p in program.parameters if stage_of.get(p.tensor) == stage)
    known = used | held | {t for p in parameters for t in (p.tensor, *p.states)}
    here = replace(
        program,
        ops=tuple(ordered),
        tensors=(*(t for t in program.tensors if t.name in known), *crossing.tensors),
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
        [
            *(r for r in layout.redistributions if any(op in signatures for op, _ in r.readers)),
            *crossing.moves,
        ],
        _late(sources, ends),
    )


def _late(sources: Sequence[Sequence[Op]], ends: Sequence[Op]) -> dict[str, str]:
    """Return what comes for the backward pass with what it waits for: the end of the forward pass."""
    last = [op.name for op in ends if op.phase == "forward"][-1:]
    return {
        group[0].name: name for group in sources for name in last if group[0].phase == "backward"
    }


class _CrossingOps:
    """The ops and tensors of what enters and leaves a stage, with their states and boxings."""

    def __init__(self, layout: Layout) -> None:
        self.program = layout.program
        self.signatures: dict[str, NdSignature] = {}
        self.tensors: list[Tensor] = []
        self.moves: list[Redistribution] = []

    def enter(self, item: StageCrossing) -> list[Op]:
        """Return the ops of a tensor that enters: the pieces come, are put together, and are there."""
        name = item.tensor
        sent, whole = f"{ARRIVAL} {name}", f"{ARRIVAL} whole {name}"
        chain = [(ARRIVAL, "", sent)]
        if item.in_pieces:
            chain.append((ARRIVAL, sent, whole))
        chain.append((ARRIVED, chain[-1][2], name))
        return [self._op(item, kind, f"{kind} {made}", read, made) for kind, read, made in chain]

    def leave(self, item: StageCrossing, number: int) -> Op:
        """Return the op of a tensor that leaves."""
        name = f"{DEPARTURE} {number} {item.tensor}"
        held = item.tensor not in self.program.producer and item.tensor not in self.program.inputs
        if item.path:
            self.moves.append(Redistribution(item.tensor, item.path, ((name, "in_0"),)))
        made = item.in_pieces or held  # a variable is copied before
        return self._op(item, DEPARTURE, name, item.tensor, name if made else "")

    def _op(self, item: StageCrossing, kind: str, name: str, read: str, made: str) -> Op:
        producer = self.program.producer.get(item.tensor)
        phase = "forward" if producer is None else producer.phase
        readers = self.program.consumers.get(item.tensor, ())
        if readers and all(op.phase == "optimizer" for op, _ in readers):
            phase = "optimizer"
        if made not in ("", item.tensor):
            self.tensors.append(replace(self.program.tensor[item.tensor], name=made))
        inputs = (("in_0", read),) if read else ()
        outputs = (("out_0", made),) if made else ()
        self.signatures[name] = {operand: item.state for operand, _ in (*inputs, *outputs)}
        return Op(name, kind, inputs, outputs, phase=phase)


def _ordered(ops: Sequence[Op], sources: Sequence[Sequence[Op]], ends: Sequence[Op]) -> list[Op]:
    """Put arrivals before the first op that reads them, departures behind the one that makes a tensor."""
    waiting = {group[-1].outputs[0][1]: group for group in sources}
    leaving: dict[str, list[Op]] = {}
    for op in ends:
        leaving.setdefault(op.inputs[0][1], []).append(op)
    found: list[Op] = []
    for op in ops:
        for _, name in op.inputs:
            found += waiting.pop(name, ())
        found.append(op)
        for _, name in op.outputs:
            found += leaving.pop(name, ())
    return [*(op for group in leaving.values() for op in group), *found]
