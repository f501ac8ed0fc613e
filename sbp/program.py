"""The captured training step: ops, tensors and how parameters, gradients and states hang together.

A Program is a frozen value; it can be saved, compared and planned without the engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from sys import intern
from typing import Any, TypeVar

import numpy as np

from autoddl.errors import AutoDDLError
from autoddl.sbp.columns import Columns, Ints, exact
from autoddl.sbp.fingerprint import digest

FORMAT_VERSION = 1

_T = TypeVar("_T")

ROLES = ("parameter", "state", "buffer", "input", "activation", "gradient", "loss", "system")
PHASES = ("forward", "backward", "optimizer")
ITEM_BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int8": 1, "uint8": 1, "bool": 1, "int32": 4, "int64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A logical tensor: its whole shape as on one device, its dtype name and its role (ROLES)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        total = 1
        for dim in self.shape:
            total *= dim
        return total

    @property
    def item_bytes(self) -> int:
        """Return the bytes of one element."""
        if self.dtype not in ITEM_BYTES:
            raise AutoDDLError(
                f"tensor {self.name}: dtype {self.dtype!r}; known are {', '.join(ITEM_BYTES)}"
            )
        return ITEM_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return self.elements * self.item_bytes


@dataclass(frozen=True)
class Op:
    """One operator. Operands are named port_index as the engine does ("a_0", "in_1", "out_0").

    `inputs` and `outputs` pair operand names with tensor names; `attrs` is sorted by name; `module`
    is the path of the module that emitted the op ("" for the graph itself).
    """

    name: str
    type: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    phase: str = "forward"
    module: str = ""

    @cached_property
    def attr(self) -> Mapping[str, Any]:
        """Return the attributes as a mapping."""
        return dict(self.attrs)

    @property
    def operands(self) -> tuple[tuple[str, str], ...]:
        """Return inputs, then outputs."""
        return self.inputs + self.outputs


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable of the model with what belongs to it.

    `tensor` is read by the model; `gradient` is the tensor that the update consumes and `update`
    the op that does it (None for buffers and frozen parameters); `states` are the optimizer's
    tensors.
    """

    tensor: str
    gradient: str | None = None
    states: tuple[str, ...] = ()
    update: str | None = None


class Order:
    """Which ops of a program wait for which others, all by position."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.number = columns, columns.place

    @cached_property
    def made(self) -> Mapping[str, tuple[int, int]]:
        """Return by tensor the op that makes it, and which of its outputs it is."""
        columns = self.columns
        outputs = columns.outputs.tensor
        places = zip(columns.maker[outputs].tolist(), columns.output[outputs].tolist(), strict=True)
        return dict(zip([columns.tensors[t].name for t in outputs.tolist()], places, strict=True))

    @cached_property
    def before(self) -> Sequence[Sequence[int]]:
        """Return for each op those whose results it reads."""
        waits, makers = self.columns.waits
        return _rows(waits, makers, len(self.columns.ops))

    @cached_property
    def after(self) -> Sequence[Sequence[int]]:
        """Return for each op those that read its results."""
        waits, makers = self.columns.waits
        return _rows(makers, waits, len(self.columns.ops))


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
    """A training step: `ops` in topological order over `tensors`."""

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    loss: str | None
    device: str = "cpu"

    @cached_property
    def columns(self) -> Columns:
        """Return the ops and tensors as numbers."""
        return Columns(self.ops, self.tensors)

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        """Return the tensors by name."""
        return _Named(self.columns.number, self.tensors)

    @cached_property
    def op(self) -> Mapping[str, Op]:
        """Return the ops by name."""
        return _Named(self.columns.place, self.ops)

    @cached_property
    def places(self) -> Mapping[str, tuple[int, ...]]:
        """Return the positions of the ops of each type."""
        table: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            table.setdefault(op.type, []).append(index)
        return {name: tuple(found) for name, found in table.items()}

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
    def order(self) -> Order:
        """Return which ops wait for which others."""
        return Order(self.columns)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Number the ops such that equal numbers mean equal types, attributes, shapes and dtypes.

        What rules, prices and local sizes say of one op then holds for all of its kind.
        """
        return tuple(self.columns.kind.tolist())

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
        """Write the program as versioned JSON."""
        Path(path).write_text(json.dumps(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form."""
        return {"format": "autoddl.program", "version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Read a program that `save` wrote.

        Raises:
            AutoDDLError: the file is missing, truncated, no program, or of another version.
        """
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise AutoDDLError(f"program file {path}: {error}; capture the graph again") from None
        return cls.from_json(data, where=f"program file {path}")

    @classmethod
    def from_json(cls, data: Any, where: str = "program") -> Program:
        """Build a program from its JSON form."""
        if not isinstance(data, dict) or data.get("format") != "autoddl.program":
            raise AutoDDLError(f"{where}: not a saved program; write one with Program.save")
        if data.get("version") != FORMAT_VERSION:
            raise AutoDDLError(
                f"{where}: version {data.get('version')}, this autoddl reads {FORMAT_VERSION}; "
                "capture the graph again"
            )
        once = Once()
        try:
            program = cls(
                ops=tuple(_op(o, once) for o in data["ops"]),
                tensors=tuple(_tensor(t, once) for t in data["tensors"]),
                inputs=tuple(data["inputs"]),
                outputs=tuple(data["outputs"]),
                parameters=tuple(
                    Parameter(**{**p, "states": tuple(p["states"])}) for p in data["parameters"]
                ),
                loss=data["loss"],
                device=data["device"],
            )
            _check(program)
        except (KeyError, TypeError, ValueError, AutoDDLError) as error:
            raise AutoDDLError(f"{where}: damaged ({error!r}); capture the graph again") from None
        return program


def _rows(rows: Ints, items: Ints, count: int) -> list[list[int]]:
    """Return the items of each row, in the order in which they are given."""
    order = np.argsort(rows, kind="stable")
    found, ends = items[order].tolist(), np.bincount(rows, minlength=count).cumsum().tolist()
    return [found[begin:end] for begin, end in pairwise([0, *ends])]


def _check(program: Program) -> None:
    """Raise where a program names tensors or ops that it lacks, or has shapes that can't be."""
    for tensor in program.tensors:
        if not all(isinstance(size, int) and size >= 0 for size in tensor.shape):
            raise ValueError(f"shape {tensor.shape} of {tensor.name}")
        _ = tensor.item_bytes
    _ = program.columns  # looks up what ops read and make
    for name in (*program.inputs, *program.outputs, *_held(program.parameters)):
        _ = program.tensor[name]
    for parameter in program.parameters:
        if (parameter.update is None) != (parameter.gradient is None):
            raise ValueError(f"parameter {parameter.tensor}: a gradient and an update go together")
        if parameter.update is not None and parameter.update not in program.op:
            raise KeyError(parameter.update)


def _held(parameters: Sequence[Parameter]) -> Iterator[str]:
    """Yield the tensors that belong to parameters."""
    for parameter in parameters:
        yield from (parameter.tensor, *parameter.states)
        if parameter.gradient is not None:
            yield parameter.gradient


class Once:
    """Keeps equal values once: thousands of ops and tensors have the same attributes and shapes."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[Any, ...]] = {}

    def __call__(self, value: tuple[_T, ...]) -> tuple[_T, ...]:
        """Return the first of the values that were the same."""
        return self._known.setdefault(exact(value), value)


def _op(data: dict[str, Any], once: Once) -> Op:
    pairs = {
        key: tuple((intern(a), intern(b)) for a, b in data[key]) for key in ("inputs", "outputs")
    }
    texts = {key: intern(data[key]) for key in ("name", "type", "phase", "module")}
    attrs = once(tuple((name, freeze(value)) for name, value in data["attrs"]))
    return Op(**{**data, **pairs, **texts, "attrs": attrs})


def _tensor(data: dict[str, Any], once: Once) -> Tensor:
    texts = {key: intern(data[key]) for key in ("name", "dtype", "role")}
    return Tensor(**{**data, **texts, "shape": once(tuple(data["shape"]))})


def freeze(value: Any) -> Any:
    """Turn lists into tuples: attribute values become hashable and compare equal after JSON."""
    return tuple(freeze(v) for v in value) if isinstance(value, list | tuple) else value
