"""Blocks: the repeated layers of a program, found once for all that make use of them.

Modules in numbered lists are layers: "model.blocks.7.fc1" lies in layer 7 of the stack "model.blocks".
Of nested lists the outermost counts. Layers are equal if they have equal ops and tensors at equal
positions; a run is a tandem repeat of them: some period of layers, several times on end. Runs are found
greedily from the first layer on, by the period that leaves most layers to be represented by others.

Example: layers a b a b a c → the run with period 2 twice over (a b a b), then none in a c. A GPT with
24 blocks has one run, of period 1 and count 24: the counterpart of op "model.blocks.7.fc1-matmul-0" in
layer 0 is "model.blocks.0.fc1-matmul-0", which stands for 24.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoddl.sbp.program.columns import Ints, ProgramColumns
from autoddl.sbp.program.ops_and_tensors import Parameter

PERIODS = range(1, 5)  # so many different layers may take turns
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")  # "07" would be another name of layer 7


class Numbered(NamedTuple):
    """A path in a stack of layers: "model.blocks.3.fc1" is ("model.blocks", 3, "fc1")."""

    stack: str
    layer: int
    rest: str


def numbered(path: str) -> Numbered | None:
    """Take a path apart at its first number; None if it has none."""
    parts = path.split(".")
    for place, part in enumerate(parts):
        if _NUMBER.fullmatch(part):
            return Numbered(".".join(parts[:place]), int(part), ".".join(parts[place + 1 :]))
    return None


def is_layer(path: str) -> bool:
    """Tell whether a module is itself one of a numbered list."""
    return _NUMBER.fullmatch(path.rpartition(".")[2]) is not None


def pattern(path: str) -> str:
    """Return a path with "*" for every number: "encoder.*.blocks.*.fc1"."""
    return ".".join("*" if _NUMBER.fullmatch(part) else part for part in path.split("."))


def layer_path(path: str) -> str:
    """Return the path of the layer that a module lies in, of others their own."""
    found = numbered(path)
    return path if found is None else f"{found.stack}.{found.layer}".removeprefix(".")


def submodule_path(path: str) -> str:
    """Return the path of the module of a layer that a module lies in, of others their own."""
    layer = layer_path(path)
    return path if layer == path else f"{layer}.{path[len(layer) + 1 :].partition('.')[0]}"


@dataclass(frozen=True)
class Repeat:
    """Equal layers: `count` periods of `period` layers each, from layer `start` on."""

    start: int
    period: int
    count: int

    @property
    def layers(self) -> range:
        """Return all its layers."""
        return range(self.start, self.start + self.period * self.count)

    def of_period(self, number: int, layer: int) -> int:
        """Return the layer of a period that equals some layer of the run."""
        return self.start + number * self.period + (layer - self.start) % self.period


def repeats(
    looks: Mapping[int, Hashable], periods: Sequence[int] = PERIODS, least: int = 2
) -> list[Repeat]:
    """Return the tandem repeats of layers that have so many periods at least, none of them twice.

    `looks` has what layers look like, by their numbers. The period counts that leaves most layers
    beyond the first `least - 1` periods; of equal ones the shorter.
    """
    found: list[Repeat] = []
    for layer in sorted(looks):
        if found and layer in found[-1].layers:
            continue
        tried = [_repeat(looks, layer, period) for period in periods]
        best = max(tried, key=lambda run: (run.count - least + 1) * run.period)
        if best.count >= least:
            found.append(best)
    return found


def _repeat(looks: Mapping[int, Hashable], start: int, period: int) -> Repeat:
    stop = start + period
    while stop in looks and stop - period in looks and looks[stop] == looks[stop - period]:
        stop += 1
    return Repeat(start, period, (stop - start) // period)


@dataclass(frozen=True, eq=False)
class Places:
    """Where items are: in a `layer` of a `stack`, at a `position` there; all -1 outside of stacks.

    Stacks and positions are numbers; equal positions in other layers are of the same kind of item.
    """

    stack: Ints
    layer: Ints
    position: Ints

    def _code(self, stack: Ints, layer: Ints, position: Ints) -> Ints:
        """Return one number for a place; they are sorted by stack, layer, position."""
        layers, positions = self.layer.max(initial=0) + 1, self.position.max(initial=0) + 1
        code: Ints = (stack * layers + layer) * positions + position
        return code

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        items = np.flatnonzero(self.stack >= 0)
        codes = self._code(self.stack[items], self.layer[items], self.position[items])
        order = np.argsort(codes)
        return items[order], codes[order]

    @property
    def items(self) -> Ints:
        """Return the items that lie in stacks, by stack, layer and position."""
        return self._sorted[0]

    def at(self, stack: Ints, layer: Ints, position: Ints) -> Ints:
        """Return the items at some places, -1 where there is none."""
        items, codes = self._sorted
        if not len(items):
            return np.full(len(stack), -1)
        wanted = self._code(stack, layer, position)
        found = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        there = (codes[found] == wanted) & (self.layer[items[found]] == layer) & (stack >= 0)
        return np.asarray(np.where(there, items[found], -1))

    def counterparts(self, items: Ints, layer: Ints) -> Ints:
        """Return the items at the same positions of other layers, -1 where there is none."""
        return self.at(self.stack[items], layer, self.position[items])


class Run(NamedTuple):
    """A repeat of layers of the stack with a number."""

    stack: int
    repeat: Repeat


class Blocks:
    """The stacks of a program, where its ops and tensors lie in them, and which layers are equal.

    An op lies where its module does, an update where its parameter does; a tensor where the op lies
    that makes it, a variable where its name says. Inputs lie in no stack.
    """

    def __init__(self, columns: ProgramColumns, parameters: Sequence[Parameter]) -> None:
        self.columns = columns
        paths = {name: number for number, name in enumerate(columns.modules)}
        op_path = columns.module.copy()
        variable, variable_path = [], []
        for parameter in parameters:
            if parameter.update is not None:
                op = columns.place[parameter.update]
                op_path[op] = paths.setdefault(parameter.tensor, len(paths))
            for name in (parameter.tensor, *parameter.states):
                variable.append(columns.number[name])
                variable_path.append(paths.setdefault(name, len(paths)))
        found = list(map(numbered, paths))
        stacks: dict[str, int] = {}
        rests: dict[str, int] = {}
        parts = [
            (-1, -1, -1) if path is None else
            (stacks.setdefault(path.stack, len(stacks)), path.layer,
             rests.setdefault(path.rest, len(rests)))
            for path in found
        ]  # fmt: skip
        self.stacks = tuple(stacks)
        place = np.array(parts, dtype=np.int64).reshape(-1, 3)
        self.ops = _ops(columns, op_path, place)
        self.tensors = _tensors(columns, self.ops, variable, place[variable_path])

    def runs_of(
        self, ops: Ints, tensors: Ints, periods: Sequence[int] = PERIODS, least: int = 2
    ) -> tuple[Run, ...]:
        """Return the runs of layers whose ops and tensors have equal labels; -1 leaves one out."""
        looks: dict[int, dict[int, Hashable]] = defaultdict(dict)
        for stack, layer, look in self._looks(ops, tensors):
            looks[stack][layer] = look
        return tuple(
            Run(stack, repeat)
            for stack, layers in looks.items()
            for repeat in repeats(layers, periods, least)
        )

    def _looks(self, ops: Ints, tensors: Ints) -> Iterator[tuple[int, int, bytes]]:
        """Yield stack, layer and what the layer looks like."""
        rows = [
            np.stack([at.stack[items], at.layer[items], np.full(len(items), sort),
                      at.position[items], labels[items]], axis=1)
            for sort, (at, labels) in enumerate(((self.ops, ops), (self.tensors, tensors)))
            for items in [at.items[labels[at.items] >= 0]]
        ]  # fmt: skip
        table = np.concatenate(rows)
        table = table[np.lexsort(table.T[::-1])]
        begins = np.flatnonzero(np.diff(table[:, :2], axis=0, prepend=-1).any(axis=1))
        for first, last in pairwise([*begins.tolist(), len(table)]):
            yield int(table[first, 0]), int(table[first, 1]), table[first:last, 2:].tobytes()


def _ops(columns: ProgramColumns, path: Ints, place: Ints) -> Places:
    """Return where the ops lie; in a layer equal ones of one module are told apart by their turn."""
    phases = {name: number for number, name in enumerate(dict.fromkeys(columns.phase.tolist()))}
    phase = np.fromiter(map(phases.__getitem__, columns.phase.tolist()), np.int64, len(path))
    sort = columns.type * max(1, len(phases)) + phase
    sorts = sort.max(initial=0) + 1
    turn = _turns(path * sorts + sort)
    stack, layer, rest = place[path].T
    _, position = np.unique((rest * sorts + sort) * (len(turn) + 1) + turn, return_inverse=True)
    return Places(stack, layer, np.where(stack >= 0, position, -1))


def _tensors(columns: ProgramColumns, ops: Places, variable: Sequence[int], place: Ints) -> Places:
    """Return where the tensors lie: results by their op and which of its outputs they are."""
    found = np.full((3, len(columns.form)), -1)
    made = np.flatnonzero(columns.maker >= 0)
    maker = columns.maker[made]
    outputs = columns.output.max(initial=0) + 1
    found[:, made] = ops.stack[maker], ops.layer[maker], ops.position[maker]
    found[2, made] = found[2, made] * outputs + columns.output[made]
    results = found[2].max(initial=-1) + 1
    stack, layer, rest = place.T
    found[:, variable] = stack, layer, results + rest
    found[2, found[0] < 0] = -1
    return Places(*found)


def _turns(keys: Ints) -> Ints:
    """Return of each key how many equal ones are before it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    turns = np.empty_like(order)
    turns[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return turns
