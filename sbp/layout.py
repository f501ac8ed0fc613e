"""The states of all tensors of a program on a mesh, and where tensors change them.

A layout holds numbers: by op which signature it has, by kept tensor which state, by redistribution its
tensor and path. Names are views of these: `layout.signatures["fc1"]["out"]`, and

    >>> layout.redistributions[0]
    Redistribution(tensor='x', path=((B),), readers=(('fc1', 'in'),), after='', early=0)

is row 0 of `layout.moves`: tensor 5, path 2 of `paths`, and an entry of `slot`: input 7 of all ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from autoddl.sbp.program import Program
from autoddl.sbp.program.columns import Flags, Ints
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp

NONE = -1  # where there is no op, tensor or state
OUTPUT = "output"  # stands for the graph's outputs among the readers of a redistribution

Path = tuple[NdSbp, ...]
"""The states after each of the boxings that a redistribution is made of."""
Reader = tuple[str, str]
"""An op and the operand by which it reads a tensor; OUTPUT and "" for what the graph returns."""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Redistribution:
    """A tensor that some readers want in another state: the states after each boxing.

    The boxing behind the first `early` ones waits for the op `after`, if there is one, so that its
    result is not there long before it is read.
    """

    tensor: str
    path: Path
    readers: tuple[Reader, ...]
    after: str = ""
    early: int = 0

    @property
    def comes_alone(self) -> bool:
        """Tell whether its first boxing is for its readers only, later than that for others.

        It then begins with an identity of its own; boxings from one result to one state are shared.
        """
        return bool(self.after) and not self.early


class Moves(NamedTuple):
    """Redistributions: number n brings `tensor[n]` to the states `paths[path[n]]`.

    `after` is the op that its boxing behind the first `early` ones waits for, or NONE. Input `slot[i]`
    of all ops gets its tensor from number `item[i]`; where `slot` is NONE the graph's output does.
    """

    tensor: Ints
    paths: Sequence[Path]
    path: Ints
    after: Ints
    early: Ints
    slot: Ints
    item: Ints

    @property
    def alone(self) -> Flags:
        """Tell which come alone (see Redistribution.comes_alone)."""
        return np.asarray((self.after != NONE) & (self.early == 0))

    @property
    def lengths(self) -> Ints:
        """Return of how many boxings each consists."""
        return np.array([*map(len, self.paths)], dtype=np.int64)[self.path]


class ByName(Mapping[str, Value], Generic[Value]):
    """Values of ops or tensors: by name as a dict has them, by number as a column.

    `place` numbers all names. Those with the `numbers` have a value, in this turn: `numbers[i]` has
    `distinct[which[i]]`, so that what many have in common is held once.
    """

    def __init__(
        self, place: Mapping[str, int], numbers: Ints, which: Ints, distinct: Sequence[Value]
    ) -> None:
        self.place, self.numbers, self.which, self.distinct = place, numbers, which, distinct

    @classmethod
    def of(cls, place: Mapping[str, int], held: Mapping[str, Value]) -> ByName[Value]:
        """Return those of a mapping's values whose names have a number; what is one object, once."""
        if isinstance(held, ByName) and held.place is place:
            return held
        found = {place[name]: value for name, value in held.items() if name in place}
        one = np.fromiter(map(id, found.values()), np.int64, len(found))
        _, first, which = np.unique(one, return_index=True, return_inverse=True)
        values = list(found.values())
        distinct = [values[index] for index in first.tolist()]
        return cls(place, np.fromiter(found, np.int64, len(found)), which, distinct)

    @cached_property
    def column(self) -> Ints:
        """Return by number which value each name has, NONE for none."""
        found = np.full(len(self.place), NONE)
        found[self.numbers] = self.which
        return found

    def complete(self) -> Ints:
        """Return the column where every name has a value.

        Raises:
            KeyError: the first one that has none.
        """
        none = np.flatnonzero(self.column == NONE)
        if len(none):
            raise KeyError(list(self.place)[none[0]])
        return self.column

    @cached_property
    def _column(self) -> list[int]:
        found: list[int] = self.column.tolist()
        return found

    def __getitem__(self, name: str) -> Value:
        which = self._column[self.place[name]]
        if which == NONE:
            raise KeyError(name)
        return self.distinct[which]

    def __contains__(self, name: object) -> bool:
        number = self.place.get(name) if isinstance(name, str) else None
        return number is not None and self._column[number] != NONE

    def __iter__(self) -> Iterator[str]:
        names = list(self.place)
        return map(names.__getitem__, self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, eq=False)
class Layout:
    """The states of a program on a mesh.

    `signatures` maps ops to the states of their operands, `variables` parameters, buffers and
    optimizer states to theirs, `inputs` the graph's inputs. `after` maps ops to others that they wait
    for without reading from them. Layouts of parts of a program lack what lies elsewhere.
    """

    program: Program = field(repr=False)
    signatures: ByName[NdSignature]
    variables: ByName[NdSbp]
    inputs: ByName[NdSbp]
    moves: Moves = field(repr=False)
    after: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, program: Program, signatures: Mapping[str, NdSignature],
        variables: Mapping[str, NdSbp], inputs: Mapping[str, NdSbp],
        redistributions: Sequence[Redistribution] = (), after: Mapping[str, str] | None = None,
    ) -> Layout:  # fmt: skip
        """Return the layout of a program, given by name; what is no part of the program is left out."""
        columns = program.columns
        return cls(
            program,
            ByName.of(columns.place, signatures),
            ByName.of(columns.number, variables),
            ByName.of(columns.number, inputs),
            _moves(program, redistributions),
            after or {},
        )

    def with_redistributions(self, items: Sequence[Redistribution]) -> Layout:
        """Return the same states with other redistributions."""
        return replace(self, moves=_moves(self.program, items))

    @cached_property
    def has_strides(self) -> bool:
        """Tell whether some cut has a stride."""
        distinct = {id(signature): signature for signature in self.signatures.values()}.values()
        states = {state for signature in distinct for state in signature.values()}
        return any(sbp.stride is not None for state in states for sbp in state)

    @cached_property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """Return what readers want in another state, one by one."""
        return _named(self.program, self.moves)

    @cached_property
    def made(self) -> dict[str, NdSbp]:
        """Return the state in which each tensor of the program is made or kept."""
        ops = self.program.ops
        results = {t: self.signatures[op.name][o] for op in ops for o, t in op.outputs}
        return {**results, **self.variables, **self.inputs}

    def state(self, tensor: int) -> NdSbp | None:
        """Return the state in which the tensor of a number is made or kept; None if it has none."""
        for held in (self.inputs, self.variables):
            which = int(held.column[tensor])
            if which != NONE:
                return held.distinct[which]
        columns = self.program.columns
        if columns.maker[tensor] < 0:
            return None
        op = self.program.ops[columns.maker[tensor]]
        return self.signatures[op.name][op.outputs[columns.output[tensor]][0]]

    def __eq__(self, other: object) -> bool:
        """Tell whether two layouts are of the same names, in whatever order these are numbered."""
        if not isinstance(other, Layout):
            return NotImplemented
        names = ("signatures", "variables", "inputs", "redistributions", "after")
        return all(getattr(self, name) == getattr(other, name) for name in names)


def _moves(program: Program, items: Sequence[Redistribution]) -> Moves:
    """Return redistributions as columns; readers of the program that read no such tensor are left out."""
    ops, tensors, inputs = program.columns.place, program.columns.number, program.columns.inputs
    paths: dict[Path, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    readers: list[tuple[int, int]] = []
    returned: set[str] = set()  # the graph returns a tensor in one state
    for item in (item for item in items if item.tensor in tensors):
        for op, operand in item.readers:
            pair = operand, item.tensor
            if op == OUTPUT and item.tensor not in returned:
                returned.add(item.tensor)
                readers.append((NONE, len(rows)))
            elif op in ops and pair in program.ops[ops[op]].inputs:
                slot = int(inputs.begin[ops[op]]) + program.ops[ops[op]].inputs.index(pair)
                readers.append((slot, len(rows)))
        path = paths.setdefault(item.path, len(paths))
        rows.append((tensors[item.tensor], path, ops.get(item.after, NONE), item.early))
    tensor, path_of, after, early = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    slot_of, number = np.array(readers, dtype=np.int64).reshape(-1, 2).T
    return Moves(tensor, tuple(paths), path_of, after, early, slot_of, number)


def _named(program: Program, moves: Moves) -> tuple[Redistribution, ...]:
    """Return the redistributions of columns."""
    ops, inputs, names = program.ops, program.columns.inputs, program.columns.operands
    readers: list[dict[Reader, None]] = [{} for _ in moves.tensor]
    op_of, name_of = (np.append(column, NONE)[moves.slot] for column in (inputs.op, inputs.name))
    rows = zip(moves.item.tolist(), op_of.tolist(), name_of.tolist(), strict=True)
    for item, op, name in rows:
        readers[item][(OUTPUT, "") if op == NONE else (ops[op].name, names[name])] = None
    columns = [column.tolist() for column in (moves.tensor, moves.path, moves.after, moves.early)]
    return tuple([
        Redistribution(
            program.tensors[tensor].name, moves.paths[path], tuple(found),
            "" if after == NONE else ops[after].name, early,
        )
        for found, tensor, path, after, early in zip(readers, *columns, strict=True)
    ])  # fmt: skip
