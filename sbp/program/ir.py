"""The captured training step: ops, tensors and how parameters, gradients and states hang together.

A Program is a frozen value; it can be saved, compared and planned without the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from autoddl import json_files
from autoddl.sbp.program import program_json
from autoddl.sbp.program.blocks import Blocks
from autoddl.sbp.program.columns import Ints, ProgramColumns
from autoddl.sbp.program.fingerprint import digest
from autoddl.sbp.program.ops_and_tensors import AGAIN, Op, Parameter, ParameterGroup, Tensor

_T = TypeVar("_T")


class _Named(Mapping[str, _T]):
    """Items by name, found by their positions."""

    def __init__(self, place: Mapping[str, int], items: Sequence[_T]) -> None:
        self._place, self._items = place, items

    def __getitem__(self, name: str) -> _T:
        return self._items[self._place[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


@dataclass(frozen=True)
class Program:
    """A training step: `ops` in topological order over `tensors`.

    `groups` say how the optimizer treats the trained parameters, `constants` which variables are tensors
    that the graph's code makes, with digests of their values; plans do not depend on either, nor does the
    fingerprint.
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    loss: str | None
    device: str = "cpu"
    groups: tuple[ParameterGroup, ...] = ()
    constants: tuple[tuple[str, str], ...] = ()

    @cached_property
    def columns(self) -> ProgramColumns:
        """Return the ops and tensors as numbers."""
        return ProgramColumns(self.ops, self.tensors)

    @cached_property
    def blocks(self) -> Blocks:
        """Return where ops and tensors lie in repeated layers, and which of these are equal."""
        return Blocks(self.columns, self.parameters)

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        """Return the tensors by name."""
        return _Named(self.columns.number, self.tensors)

    @cached_property
    def op(self) -> Mapping[str, Op]:
        """Return the ops by name."""
        return _Named(self.columns.place, self.ops)

    @cached_property
    def parameter(self) -> Mapping[str, Parameter]:
        """Return the parameters by the name of the tensor that the model reads."""
        return {p.tensor: p for p in self.parameters}

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """Return the op that makes each tensor; inputs and variables have none."""
        return {name: op for op in self.ops for _, name in op.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[Op, str], ...]]:
        """Return the (op, operand) pairs that read each tensor."""
        table: dict[str, list[tuple[Op, str]]] = {}
        for op in self.ops:
            for operand, name in op.inputs:
                table.setdefault(name, []).append((op, operand))
        return {name: tuple(readers) for name, readers in table.items()}

    @cached_property
    def precedence(self) -> tuple[Ints, Ints]:
        """Return pairs of ops of which the second comes after the first, though it reads nothing of it.

        A parameter's update comes after those that read the parameter. Where the engine clips gradients
        by their norm, or skips updates unless all are finite, it comes after all gradients: the first
        update does, and each other one after that before it. So do copies that make forward results once
        more (`waits`).
        """
        (readers, overwriting), (makers, first) = self._overwritten, self._joint
        place, waits = self.columns.place, self.waits
        late, early = ([*map(place.__getitem__, ops)] for ops in (waits, waits.values()))
        before, after = (np.array(ops, dtype=np.int64) for ops in (early, late))
        return np.concatenate((readers, makers, before)), np.concatenate(
            (overwriting, first, after)
        )

    @cached_property
    def waits(self) -> Mapping[str, str]:
        """Return which op each copy of a forward op waits for, whose result it does not read.

        It is the last one of which the first that reads a copy needs something else.
        """
        found, copies, place = dict[str, str](), list[str](), self.columns.place
        for op in self.ops:
            if op.name.startswith(AGAIN):
                copies.append(op.name)
            elif copies:
                others = [
                    self.producer[name].name
                    for _, name in op.inputs
                    if name in self.producer and not name.startswith(AGAIN)
                ]
                if others:
                    found |= dict.fromkeys(copies, max(others, key=place.__getitem__))
                copies = []
        return found

    @property
    def _joint(self) -> tuple[Ints, Ints]:
        trained = [p for p in self.parameters if p.update is not None]
        clipped = [frozenset(group.parameters) for group in self.groups if group.clip]
        # In the order of the program, whichever of both holds: two orders of updates would be a circle.
        together = [[p for p in self.parameters if p.tensor in names] for names in clipped]
        skipping = [p for p in trained if "skip_if_0" in dict(self.op[p.update or ""].inputs)]
        place, pairs = self.columns.place, list[tuple[int, int]]()
        for parameters in (*together, skipping):
            updates = [place[p.update] for p in parameters if p.update is not None]
            gradients = [p.gradient for p in parameters if p.gradient in self.producer]
            makers = [place[self.producer[name].name] for name in gradients if name is not None]
            pairs += [(maker, update) for update in updates[:1] for maker in makers]
            pairs += pairwise(updates)
        first, then = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return first, then

    @property
    def _overwritten(self) -> tuple[Ints, Ints]:
        update = np.full(len(self.tensors), -1)
        for place, op in enumerate(self.ops):
            if op.phase == "optimizer" and op.is_update:
                update[self.columns.number[dict(op.inputs)["model_0"]]] = place
        readers, updates = self.columns.inputs.op, update[self.columns.inputs.tensor]
        other = (updates >= 0) & (updates != readers)
        return readers[other], updates[other]

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits, equal for equal graphs (ops, shapes, attributes, device)."""
        return digest(self.device, self.columns, self.inputs, self.outputs, attributes=True)

    @cached_property
    def structure(self) -> str:
        """Return 16 hex digits, equal for graphs that differ in attributes of ops only."""
        return digest(self.device, self.columns, self.inputs, self.outputs, attributes=False)

    def shapes(self, op: Op) -> dict[str, tuple[int, ...]]:
        """Return the logical shape of every operand of `op`."""
        return {operand: self.tensor[name].shape for operand, name in op.operands}

    def save(self, path: str | Path) -> None:
        """Write the program as versioned JSON.

        Raises:
            AutoDDLError: it can't be written.
        """
        json_files.write(path, msgspec.json.encode(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form."""
        return program_json.encode(**{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Read a program that `save` wrote.

        Raises:
            AutoDDLError: the file is missing, truncated, changed, no program, or of another version.
        """
        remedy = program_json.AGAIN
        return json_files.read(path, cls.decode, what="program file", remedy=remedy)

    @classmethod
    def decode(cls, text: bytes | str | msgspec.Raw, where: str = "program") -> Program:
        """Build a program from the text of its JSON form.

        Raises:
            AutoDDLError: the text is no program, of another version, or damaged; says where in it.
        """
        return cls(**program_json.decode(text, where))

    @classmethod
    def from_json(cls, data: Any, where: str = "program") -> Program:
        """Build a program from its JSON form."""
        return cls.decode(msgspec.json.encode(data), where)
