"""The nodes and edges of a problem as columns: what several share is held once, and told by number.

A problem has tens of thousands of them. What goes over all of them works on these columns; `Nodes` and
`Edges` make the objects when one is asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Generic, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from autoddl.perfmodel.redistribute import RedistributionTable
from autoddl.sbp.rules.candidates import NdSignature

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_T = TypeVar("_T")

TENSOR = "tensor"  # operand name of input, output and parameter nodes
GRADIENT = "gradient"
KEPT = "kept"  # kind of the nodes of tensors that wait for the backward pass (search/passes.py)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A variable of the problem.

    `kind` is op, input, output, parameter or kept; `name` that of the op, tensor or parameter. `choices`
    maps operands to states, `compute_s` and `memory_bytes` have one entry per choice.
    """

    kind: str
    name: str
    choices: tuple[NdSignature, ...]
    compute_s: Floats
    memory_bytes: Ints


@dataclass(frozen=True, eq=False, slots=True)
class Edge:
    """A tensor: who makes it, who reads it, and in which state under each of their choices.

    `source[c]` is the state (an index into the table) under choice c of the producer; `readers` pair
    a node with the same array for what it wants. `operands` are what its ends call the tensor: the
    producer, then each reader.
    """

    tensor: str
    table: RedistributionTable
    producer: int
    source: Ints
    readers: tuple[tuple[int, Ints], ...]
    operands: tuple[str, ...]

    def seconds(self, assignment: Sequence[int]) -> float:
        """Return the redistribution time under an assignment: once per wanted state."""
        row = self.table.cost[self.source[assignment[self.producer]]]
        return float(sum(row[i] for i in self.wanted(assignment)))

    def wanted(self, assignment: Sequence[int]) -> set[int]:
        """Return the states that the readers want, as indices into the table."""
        return {int(states[assignment[node]]) for node, states in self.readers}


class Form(NamedTuple):
    """What nodes choose from, with the seconds and bytes of each choice."""

    choices: tuple[NdSignature, ...]
    compute_s: Floats
    memory_bytes: Ints


class NodeColumns(NamedTuple):
    """Node n is of kind `kinds[kind[n]]`, has the name `name[n]` and is of form `forms[form[n]]`."""

    kinds: Sequence[str]
    kind: Ints
    name: Sequence[str]
    forms: Sequence[Form]
    form: Ints

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> NodeColumns:
        """Return the columns of some nodes; those with the same arrays are of one form."""
        if isinstance(nodes, Nodes):
            return nodes.columns
        kinds: dict[str, int] = {}
        kind = [kinds.setdefault(node.kind, len(kinds)) for node in nodes]
        ids = [(id(n.choices), id(n.compute_s), id(n.memory_bytes)) for n in nodes]
        known = dict(zip(ids, nodes, strict=True))
        forms = [Form(n.choices, n.compute_s, n.memory_bytes) for n in known.values()]
        number = dict(zip(known, range(len(known)), strict=True))
        form = ints([number[key] for key in ids])
        return cls(tuple(kinds), ints(kind), [node.name for node in nodes], forms, form)

    def of_kind(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """Tell of every node whether it is of one of some kinds."""
        return np.array([kind in kinds for kind in self.kinds] or [False])[self.kind]

    def where(self, *kinds: str) -> Ints:
        """Return the nodes of some kinds, in their order."""
        return np.flatnonzero(self.of_kind(*kinds))


class EdgeColumns(NamedTuple):
    """Edge e moves the tensor `tensor[e]` at the prices of `tables[table[e]]`.

    Its ends are numbered from `begin[e]` to `begin[e + 1]`: its producer, then its readers. By end,
    `node` is the node, `arrays[states[end]]` the states under its choices, and `operands[operand[end]]`
    what the node calls the tensor.
    """

    tensor: Sequence[str]
    tables: Sequence[RedistributionTable]
    table: Ints
    begin: Ints
    node: Ints
    arrays: Sequence[Ints]
    states: Ints
    operands: Sequence[str]
    operand: Ints

    @classmethod
    def of(cls, edges: Sequence[Edge]) -> EdgeColumns:
        """Return the columns of some edges; those with the same table have one number for it."""
        if isinstance(edges, Edges):
            return edges.columns
        counts = [1 + len(edge.readers) for edge in edges]
        ends = list(chain.from_iterable([((e.producer, e.source), *e.readers) for e in edges]))
        table, tables = shared([edge.table for edge in edges])
        states, arrays = shared([states for _, states in ends])
        names: dict[str, int] = {}
        operand = [names.setdefault(name, len(names)) for edge in edges for name in edge.operands]
        return cls(
            [edge.tensor for edge in edges], tables, table,
            np.concatenate(([0], np.cumsum(ints(counts)))), ints([node for node, _ in ends]),
            arrays, states, tuple(names), ints(operand),
        )  # fmt: skip


class _Made(Sequence[_T], Generic[_T]):
    """Objects that are made when they are asked for, once."""

    def __init__(self, count: int) -> None:
        self._made: list[_T | None] = [None] * count

    @abstractmethod
    def make(self, index: int) -> _T:
        """Make one of them."""

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        if isinstance(index, slice):
            return tuple([self[i] for i in range(*index.indices(len(self)))])
        found = self._made[index]
        if found is None:
            found = self.make(index if index >= 0 else index + len(self))
            self._made[index] = found
        return found

    def __iter__(self) -> Iterator[_T]:
        return map(self.__getitem__, range(len(self)))


class Tuples(_Made[tuple[int, ...]]):
    """Rows of numbers one behind the other, of which the n-th begins at `begin[n]`."""

    def __init__(self, begin: Ints, items: Ints) -> None:
        super().__init__(len(begin) - 1)
        self._begin, self._items = _view(begin), _view(items)

    def make(self, index: int) -> tuple[int, ...]:
        """Make one of them."""
        return tuple(self._items[self._begin[index] : self._begin[index + 1]].tolist())


class Nodes(_Made[Node]):
    """The nodes of a problem."""

    def __init__(self, columns: NodeColumns) -> None:
        super().__init__(len(columns.form))
        self.columns = columns

    @cached_property
    def _numbers(self) -> tuple[memoryview, ...]:
        return _view(self.columns.kind), _view(self.columns.form)

    def make(self, index: int) -> Node:
        """Make one of them."""
        columns, (kind, form) = self.columns, self._numbers
        return Node(columns.kinds[kind[index]], columns.name[index], *columns.forms[form[index]])


class Edges(_Made[Edge]):
    """The edges of a problem."""

    def __init__(self, columns: EdgeColumns) -> None:
        super().__init__(len(columns.table))
        self.columns = columns

    @cached_property
    def _numbers(self) -> tuple[memoryview, ...]:
        c = self.columns
        return tuple(map(_view, (c.table, c.begin, c.node, c.states, c.operand)))

    def make(self, index: int) -> Edge:
        """Make one of them."""
        columns, (table, begin, node, states, operand) = self.columns, self._numbers
        first, last = begin[index], begin[index + 1]
        arrays, names = columns.arrays, columns.operands
        ends = [arrays[number] for number in states[first:last]]
        return Edge(
            columns.tensor[index],
            columns.tables[table[index]],
            node[first],
            ends[0],
            tuple(zip(node[first + 1 : last], ends[1:], strict=True)),
            tuple([names[number] for number in operand[first:last]]),
        )


def _view(numbers: Ints) -> memoryview:
    """Return numbers such that single ones are looked up fast, as integers of Python."""
    return np.ascontiguousarray(numbers).data


def shared(items: Sequence[_T]) -> tuple[Ints, list[_T]]:
    """Return which of some objects each item is, and these objects, once each, in their order."""
    number: dict[int, int] = {}
    found = [number.setdefault(id(item), len(number)) for item in items]
    return ints(found), list(dict(zip(found, items, strict=True)).values())


def ints(values: Sequence[int] | Sequence[tuple[int, ...]]) -> Ints:
    """Return integers as an array."""
    return np.array(values, dtype=np.int64)
