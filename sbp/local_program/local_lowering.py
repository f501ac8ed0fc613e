"""Lower a layout to the instructions of all ranks: its ops in their order, its boxings where they begin.

A tensor that an op makes is boxed as soon as it is there, one that is given just before it is first read,
and one whose redistribution waits for an op (`Redistribution.after`) behind that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from autoddl.errors import AutoDDLError
from autoddl.sbp.layout import OUTPUT, Layout, Redistribution
from autoddl.sbp.local_program.instructions import (
    Communication,
    Computation,
    Instruction,
    LocalProgram,
    LocalTensor,
    Property,
    written,
)
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program
from autoddl.sbp.state import NdSbp, broadcast

_Step = tuple[
    Property, Property, bool
]  # from, to, and whether it is done once more for its readers


def lower(layout: Layout, mesh: Mesh) -> LocalProgram:
    """Return what every rank of a mesh does in the layout of a whole program.

    Raises:
        AutoDDLError: an op has no signature; a state cuts a tensor unevenly, or in strides.
    """
    program = layout.program
    missing = next((op for op in program.ops if op.name not in layout.signatures), None)
    if missing is not None:
        raise AutoDDLError(f"op {missing.name}: no signature; lower the layout of a whole program")
    begins = _begins(layout, mesh)
    instructions = tuple(_Lowering(layout, mesh).instructions(begins))
    states = {item.tensor: item.path[-1] for item in layout.redistributions
              if (OUTPUT, "") in item.readers}  # fmt: skip
    returned = {name: states.get(name, layout.made.get(name)) for name in program.outputs}
    kept = [(name, state or begins[name]) for name, state in returned.items()]
    kept += [(name, begins[name]) for name in begins if name not in program.inputs]
    given, last = (tuple(LocalTensor.of(program.tensor[name], state, mesh) for name, state in held)
                   for held in (begins.items(), kept))  # fmt: skip
    return LocalProgram(program, mesh, given, instructions, last)


def _begins(layout: Layout, mesh: Mesh) -> dict[str, NdSbp]:
    """Return the states of what no op makes; what a layout does not plan (learning rates) is B."""
    program, whole = layout.program, broadcast(mesh.ndim)
    known = {**layout.variables, **layout.inputs}
    names = (t.name for t in program.tensors if t.name not in program.producer)
    return {name: known.get(name, whole) for name in names}


class _Lowering:
    """Put boxings before and behind the ops of a program."""

    def __init__(self, layout: Layout, mesh: Mesh) -> None:
        self.layout, self.mesh = layout, mesh
        self.program = layout.program
        self.place = self.program.columns.place
        self.before: dict[int, list[_Step]] = defaultdict(list)
        self.behind: dict[int, list[_Step]] = defaultdict(list)

    def instructions(self, begins: dict[str, NdSbp]) -> Iterator[Instruction]:
        """Yield the instructions in their order."""
        made = {**self.layout.made, **begins}
        for item in self.layout.redistributions:
            self._put(item, made[item.tensor])
        there: set[Property] = set()
        for number, op in enumerate(self.program.ops):
            yield from self._boxings(self.before[number], there)
            yield self._computation(op)
            if gone := _overwritten(self.program, op):
                there = {p for p in there if p.tensor not in gone}
            yield from self._boxings(self.behind[number], there)
        yield from self._boxings(self.before[len(self.program.ops)], there)

    def _put(self, item: Redistribution, made: NdSbp) -> None:
        states = [Property(item.tensor, state) for state in (made, *item.path)]
        steps = [(*pair, item.comes_alone) for pair in pairwise(states)]
        maker = self.program.producer.get(item.tensor)
        if maker is not None:
            first = self.behind[self.place[maker.name]]
        else:
            last = len(self.program.ops)  # the graph returns behind its ops
            numbers = (last if op == OUTPUT else self.place[op] for op, _ in item.readers)
            first = self.before[min(numbers, default=last)]
        then = self.behind[self.place[item.after]] if item.after else first
        first += steps[: item.early]
        then += steps[item.early :]

    def _boxings(self, steps: list[_Step], there: set[Property]) -> Iterator[Communication]:
        """Yield those of which the result is not there yet, or is wanted once more."""
        for before, after, alone in steps:
            if alone or after not in there:
                there.add(after)
                tensor = self.program.tensor[before.tensor]
                yield Communication.of(tensor, before.state, after.state, self.mesh)

    def _computation(self, op: Op) -> Computation:
        return Computation.of(self.program, op, self.layout.signatures[op.name], self.mesh)


def _overwritten(program: Program, op: Op) -> frozenset[str]:
    """Return the tensors that an op updates in place."""
    changed = written(program, op)
    return frozenset(tensor for operand, tensor in op.inputs if operand in changed)
