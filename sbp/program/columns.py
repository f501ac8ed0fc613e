"""A program column by column: its ops and tensors as numbers, for what reads all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.sbp.program.ops_and_tensors import Op, Tensor, exact

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Operands:
    """What ops read, or what they make: those of op i are numbered from `begin[i]` to `begin[i + 1]`.

    By operand, `op` is its op, `tensor` the tensor's number, and `name` the number of the operand's
    name in `ProgramColumns.operands`.
    """

    begin: Ints
    tensor: Ints
    name: Ints

    @cached_property
    def op(self) -> Ints:
        """Return the op of each operand."""
        return np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))


class ProgramColumns:
    """Ops and tensors of a program by their positions in it.

    By op: `type` and `module` number `types` and `modules`, `kind` is equal for ops of equal types,
    attributes, shapes and dtypes; `place` is its position by name. By tensor: `form` numbers `forms`
    (shapes and dtypes), `role` numbers `roles`; `number` is its position by name.
    """

    def __init__(self, ops: Sequence[Op], tensors: Sequence[Tensor]) -> None:
        self.ops, self.tensors = ops, tensors
        # each op is looked at once: what takes time is to get at thousands of them in memory
        rows = map(attrgetter("name", "type", "module", "phase", "attrs", "inputs", "outputs"), ops)
        names, kinds, paths, self._phases, self._attrs, reads, makes = _transposed(rows, 7)
        facts = map(attrgetter("name", "role", "shape", "dtype"), tensors)
        tensor_names, roles, *form = _transposed(facts, 4)
        self.place: Mapping[str, int] = dict(zip(names, range(len(names)), strict=True))
        self.number: Mapping[str, int] = dict(zip(tensor_names, range(len(tensors)), strict=True))
        forms: dict[tuple[tuple[int, ...], str], int] = {}
        self.form = _numbers(list(zip(*form, strict=True)), forms)
        known: dict[str, int] = {}
        self.role = _numbers(roles, known)
        self.forms, self.roles = tuple(forms), tuple(known)
        types: dict[str, int] = {}
        modules: dict[str, int] = {}
        operands: dict[str, int] = {}
        self.type, self.module = _numbers(kinds, types), _numbers(paths, modules)
        self.inputs, self.outputs = self._operands(reads, operands), self._operands(makes, operands)
        self.types, self.modules, self.operands = tuple(types), tuple(modules), tuple(operands)

    def _operands(
        self, pairs: Sequence[Sequence[tuple[str, str]]], names: dict[str, int]
    ) -> Operands:
        counts = np.fromiter(map(len, pairs), np.int64, len(pairs))
        operands, tensors = _transposed(chain.from_iterable(pairs), 2)
        return Operands(
            np.concatenate(([0], counts.cumsum())),
            np.fromiter(map(self.number.__getitem__, tensors), np.int64, len(tensors)),
            _numbers(operands, names),
        )

    @cached_property
    def size_bytes(self) -> Ints:
        """Return the bytes of every tensor, whole."""
        _, first = np.unique(self.form, return_index=True)
        sizes = [self.tensors[i].size_bytes for i in first.tolist()]
        return np.array(sizes, dtype=np.int64)[self.form]

    @cached_property
    def kind(self) -> Ints:
        """Return equal numbers for ops of equal types, attributes, operands, shapes and dtypes.

        What rules, prices and local sizes say of one op then holds for all of its kind.
        """
        parts = [
            (np.stack([self.form[o.tensor], o.name], axis=1).astype(np.int32).tobytes(), o.begin)
            for o in (self.inputs, self.outputs)
        ]
        ins, outs = ([data[8 * a : 8 * b] for a, b in _spans(begin)] for data, begin in parts)
        keys = zip(self.type.tolist(), self.attribute.tolist(), ins, outs, strict=True)
        known: dict[object, int] = {}
        return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)

    @cached_property
    def attribute(self) -> Ints:
        """Return equal numbers for ops of the same attributes, which number `attributes`."""
        objects = _numbers(list(map(id, self._attrs)), {})  # mostly few, of many ops each
        _, first = np.unique(objects, return_index=True)
        return _numbers([exact(self._attrs[op]) for op in first.tolist()], {})[objects]

    @cached_property
    def attributes(self) -> Sequence[tuple[tuple[str, Any], ...]]:
        """Return the attributes of ops, the same ones once."""
        _, first = np.unique(self.attribute, return_index=True)
        return [self._attrs[op] for op in first.tolist()]

    @cached_property
    def phase(self) -> npt.NDArray[np.str_]:
        """Return the phase of every op."""
        known: dict[str, int] = {}
        numbers = _numbers(self._phases, known)
        return np.array(list(known), dtype=np.str_)[numbers]

    @cached_property
    def maker(self) -> Ints:
        """Return for every tensor the op that makes it, -1 where none does."""
        found = np.full(len(self.form), -1)
        found[self.outputs.tensor] = self.outputs.op
        return found

    @cached_property
    def output(self) -> Ints:
        """Return for every tensor which output of its op it is, 0 where none makes it."""
        found = np.zeros(len(self.form), dtype=np.int64)
        made = self.outputs
        found[made.tensor] = np.arange(len(made.tensor)) - made.begin[made.op]
        return found

    @cached_property
    def waits(self) -> tuple[Ints, Ints]:
        """Return which op waits for which other: pairs, once each, sorted by the one that waits."""
        maker = self.maker[self.inputs.tensor]
        count = max(1, len(self.ops))
        pairs = np.unique((self.inputs.op * count + maker)[maker >= 0])
        return pairs // count, pairs % count

    @cached_property
    def before(self) -> Sequence[Sequence[int]]:
        """Return for each op those whose results it reads."""
        waits, makers = self.waits
        return _rows(waits, makers, len(self.ops))

    @cached_property
    def after(self) -> Sequence[Sequence[int]]:
        """Return for each op those that read its results."""
        waits, makers = self.waits
        return _rows(makers, waits, len(self.ops))

    @cached_property
    def made(self) -> Mapping[str, tuple[int, int]]:
        """Return by tensor the op that makes it, and which of its outputs it is."""
        outputs = self.outputs.tensor
        places = zip(self.maker[outputs].tolist(), self.output[outputs].tolist(), strict=True)
        return dict(zip([self.tensors[t].name for t in outputs.tolist()], places, strict=True))


def _rows(rows: Ints, items: Ints, count: int) -> list[list[int]]:
    """Return the items of each row, in the order in which they are given."""
    order = np.argsort(rows, kind="stable")
    found, ends = items[order].tolist(), np.bincount(rows, minlength=count).cumsum().tolist()
    return [found[begin:end] for begin, end in pairwise([0, *ends])]


def _transposed(rows: Iterable[Sequence[Any]], count: int) -> Sequence[tuple[Any, ...]]:
    """Return the columns of some rows, of which there may be none."""
    return list(zip(*rows, strict=True)) or [()] * count


def _numbers(keys: Sequence[Any], known: dict[Any, int]) -> Ints:
    """Number keys in the order in which they first occur; `known` are those that have numbers."""
    for key in dict.fromkeys(keys):
        known.setdefault(key, len(known))
    return np.fromiter(map(known.__getitem__, keys), np.int64, len(keys))


def _spans(begin: Ints) -> Iterable[tuple[int, int]]:
    ends = begin.tolist()
    return pairwise(ends)
