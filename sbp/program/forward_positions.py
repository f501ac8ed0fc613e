"""Where ops stand in the forward pass: what pipelines cut.

A forward op stands where it comes in the program, an op of the backward pass where the forward op
stands that it differentiates, an update where its variable is first read, and so does what adds
gradients for it. So a place between two positions cuts the whole training step in two.

Any stages that keep the order of data are such a cut, of the forward ops in the order of their stages.
Of two branches a1 b1 a2 b2 with a1 and b1 b2 in stage 0 and a2 in stage 1, that is a1 b1 b2 | a2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoddl.sbp.program import Op, Program


@dataclass(frozen=True)
class Positions:
    """Positions 0 … count - 1 by the name of an op, and by that of a variable or input."""

    count: int
    op: Mapping[str, int]
    held: Mapping[str, int]


def positions(program: Program, stage_of: Mapping[str, int] | None = None) -> Positions:
    """Return where the ops, variables and inputs of a training step stand in its forward pass.

    Forward ops are as they come in the program, with `stage_of` those of each stage together. Gradients
    flow to equal or lower positions. Where no forward tensor tells which op is differentiated (a sum of
    gradients, a reshape), an op stands where its last gradient comes from.
    """
    forward = [op for op in program.ops if op.phase == "forward"]
    if stage_of is not None:
        forward.sort(key=lambda op: stage_of[op.name])
    return _Finder(program, forward).find()


class _Finder:
    """Go through the ops in the order of the program."""

    def __init__(self, program: Program, forward: Sequence[Op]) -> None:
        self.program = program
        self.place = {op.name: i for i, op in enumerate(forward)}
        self.count = len(forward)
        self.end = {op.module: self.place[op.name] for op in forward}
        self.gradient_of = {p.gradient: p.tensor for p in program.parameters if p.gradient}
        self.around: dict[str, list[int]] = {}  # the forward ops that make or read each tensor
        for op in forward:
            for _, tensor in op.operands:
                self.around.setdefault(tensor, []).append(self.place[op.name])

    def find(self) -> Positions:
        again = self._again()
        for op in self.program.ops:
            if op.phase == "backward" and op.name not in again:
                self.place[op.name] = self._backward(op)
        for op in reversed(again.values()):
            outputs = [tensor for _, tensor in op.outputs]
            readers = [o.name for t in outputs for o, _ in self.program.consumers.get(t, ())]
            places = [self.place[name] for name in readers]
            self.place[op.name] = max(places) if places else self._backward(op)
        held = dict(self._held())
        for op in self.program.ops:
            if op.phase == "optimizer" and op.is_update:
                self.place[op.name] = held[dict(op.inputs)["model_0"]]
            elif op.phase == "optimizer":  # it makes a gradient, or a part of one
                made = [self.gradient_of[t] for _, t in op.outputs if t in self.gradient_of]
                self.place |= {op.name: held[made[0]]} if made else {}
        return Positions(self.count, self.place, held)

    def _again(self) -> dict[str, Op]:
        """Return the ops of the backward pass that read no gradient: they stand where these are read."""
        found: dict[str, Op] = {}
        for op in self.program.ops:
            made = [self.program.producer.get(tensor) for _, tensor in op.inputs]
            forward = (o is None or o.phase == "forward" or o.name in found for o in made)
            begins = any(tensor == self.program.loss for _, tensor in op.inputs)
            if op.phase == "backward" and not begins and all(forward):
                found[op.name] = op
        return found

    def _backward(self, op: Op) -> int:
        made = [self.program.producer.get(tensor) for _, tensor in op.inputs]
        names = [o.name for o in made if o is not None and o.phase == "backward"]
        before = [self.place[name] for name in names if name in self.place]
        last = min(before, default=self.count - 1)
        known = [t for _, t in op.inputs if t in self.around]
        known += [self.gradient_of[t] for _, t in op.outputs if t in self.gradient_of]
        sets = [set(self.around[t]) for t in known if t in self.around]
        if not sets:
            return last if any(made) else self._beside(op)
        common = [place for place in set.intersection(*sets) if place <= last]
        if common:
            return max(common)
        return min(max([p for p in places if p <= last], default=last) for places in sets)

    def _beside(self, op: Op) -> int:
        """Return where the module of an op ends that alone reads a variable (it counts batches)."""
        place = self.end.get(op.module, self.count - 1)
        for _, tensor in op.inputs:
            self.around.setdefault(tensor, []).append(place)
        return place

    def _held(self) -> Iterator[tuple[str, int]]:
        program = self.program
        for name in program.inputs:
            readers = [self.place.get(op.name) for op, _ in program.consumers.get(name, ())]
            yield name, min([place for place in readers if place is not None], default=0)
        for parameter in program.parameters:
            place = min(self.around.get(parameter.tensor, ()), default=0)
            yield from ((name, place) for name in (parameter.tensor, *parameter.states))


def stages(found: Positions, bounds: Sequence[int]) -> dict[str, int]:
    """Return the stage of every op, variable and input; stage i begins at position bounds[i - 1]."""
    return {
        name: sum(place >= bound for bound in bounds)
        for name, place in (*found.op.items(), *found.held.items())
    }
