"""Redistributions, one by one as a plan has them, or column by column as the memory model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from autoddl.perfmodel.rank import NONE, Flags, Ints
from autoddl.perfmodel.wiring import Wiring
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp

Path = tuple[NdSbp, ...]


class Redistributed(Protocol):
    """A tensor that some readers want in another state: the states after each boxing.

    `readers` are (op, operand) pairs; those that are no op stand for the graph's outputs. The boxing
    behind the first `early` ones waits for the op `after`, if there is one.
    """

    @property
    def tensor(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def readers(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def after(self) -> str: ...
    @property
    def early(self) -> int: ...


def comes_alone(redistribution: Redistributed) -> bool:
    """Tell whether its first boxing is for its readers only, later than that for others.

    It then begins with an identity of its own; boxings from one result to one state are shared.
    """
    return bool(redistribution.after) and not redistribution.early


class Moves(NamedTuple):
    """The redistributions of a program: number n brings `tensor[n]` to the states `paths[path[n]]`.

    `after` is the op that its boxing behind the first `early` ones waits for, or NONE. Input `slot[i]`
    of all ops (see Wiring) gets its tensor from number `item[i]`; where `slot` is NONE the graph's
    output does. What is in no stage of a program has the number NONE.
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
        """Tell which come alone (see comes_alone)."""
        return np.asarray((self.after != NONE) & (self.early == 0))


class Moving:
    """Redistributions of a program whose columns are known."""

    program: Program
    moves: Moves


def moves_of(wiring: Wiring, items: Sequence[Redistributed]) -> Moves:
    """Return redistributions as columns; of what reads no such tensor nothing is told."""
    if isinstance(items, Moving) and items.program is wiring.program:
        return items.moves
    ops, tensors = wiring.op, wiring.tensor
    paths: dict[Path, int] = {}
    columns = [
        (
            tensors.get(item.tensor, NONE),
            paths.setdefault(item.path, len(paths)),
            ops.get(item.after, NONE),
            item.early,
        )
        for item in items
    ]
    readers: list[tuple[int, int]] = []
    outputs: dict[str, tuple[str, str]] = {}  # by tensor: the one of them that counts
    for number, item in enumerate(items):
        for reader in item.readers:
            op = ops.get(reader[0])
            if op is None:
                if outputs.setdefault(item.tensor, reader) == reader:
                    readers.append((NONE, number))
                continue
            slot = wiring.slot(item.tensor, op, reader[1])
            if slot != NONE:
                readers.append((slot, number))
    tensor, path, after, early = np.array(columns, dtype=np.int64).reshape(-1, 4).T
    slots, numbers = np.array(readers, dtype=np.int64).reshape(-1, 2).T
    return Moves(tensor, tuple(paths), path, after, early, slots, numbers)
