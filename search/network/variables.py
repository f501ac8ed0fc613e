"""Variables and factors as columns: what several share is held once, and told by number.

three ops with one domain of 9 choices: domain = [0, 0, 0], domains = [that one]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.search.network.evaluator import Flags, Floats, Ints

_T = TypeVar("_T")

TENSOR = "tensor"  # operand name of inputs, outputs, parameters and saved tensors
GRADIENT = "gradient"
SAVED = "saved"  # kind of the variables of tensors that wait for the backward pass


class Domain(NamedTuple):
    """What variables choose from: operands' states by choice, with seconds and bytes of each."""

    choices: tuple[NdSignature, ...]
    compute_s: Floats
    memory_bytes: Ints


class Variables(NamedTuple):
    """Variable v is of kind `kinds[kind[v]]`, has the name `name[v]` and the domain `domains[domain[v]]`.

    Kinds are op, input, output, parameter and saved. `op` is the position of an op in the program, -1
    for variables of other kinds.
    """

    kinds: Sequence[str]
    kind: Ints
    name: Sequence[str]
    domains: Sequence[Domain]
    domain: Ints
    op: Ints

    def of_kind(self, *kinds: str) -> Flags:
        """Tell of every variable whether it is of one of some kinds."""
        return np.array([kind in kinds for kind in self.kinds] or [False])[self.kind]

    def where(self, *kinds: str) -> Ints:
        """Return the variables of some kinds, in their order."""
        return np.flatnonzero(self.of_kind(*kinds))

    def of(self, variable: int) -> Domain:
        """Return the domain of a variable."""
        found: Domain = self.domains[self.domain[variable]]
        return found

    @property
    def sizes(self) -> Ints:
        """Return how many choices every variable has."""
        return ints([len(domain.choices) for domain in self.domains])[self.domain]


class Factors(NamedTuple):
    """Factor f is number `tensor[f]` of the program's tensors, at the prices of `tables[table[f]]`.

    The ends of its scope are numbered from `begin[f]` to `begin[f + 1]`: who makes it, then who reads
    it. By end, `variable` is the variable, `arrays[states[end]]` the states under its choices (indices
    into the table), and `operands[operand[end]]` what the variable calls the tensor.
    """

    tensor: Ints
    tables: Sequence[RedistributionTable]
    table: Ints
    begin: Ints
    variable: Ints
    arrays: Sequence[Ints]
    states: Ints
    operands: Sequence[str]
    operand: Ints

    @property
    def producer(self) -> Ints:
        """Return who makes each tensor."""
        found: Ints = self.variable[self.begin[:-1]]
        return found

    @property
    def factor(self) -> Ints:
        """Return of each end which factor it belongs to."""
        return np.repeat(np.arange(len(self.table)), np.diff(self.begin))

    @property
    def reads(self) -> Flags:
        """Tell of each end whether it is that of a reader."""
        found = np.ones(len(self.variable), dtype=np.bool_)
        found[self.begin[:-1]] = False
        return found

    def reading(self, left: Flags) -> Factors:
        """Return the factors with only those readers that are at some ends."""
        kept = ~self.reads | left
        begin = np.concatenate(([0], np.cumsum(np.bincount(self.factor[kept]))))
        return self._replace(
            begin=begin, variable=self.variable[kept], states=self.states[kept],
            operand=self.operand[kept],
        )  # fmt: skip

    def ends(self, factor: int) -> Iterator[tuple[int, Ints]]:
        """Yield the variables of a scope, with their states by choice: the producer, then each reader."""
        for end in range(self.begin[factor], self.begin[factor + 1]):
            yield int(self.variable[end]), self.arrays[self.states[end]]


def shared(items: Sequence[_T]) -> tuple[Ints, list[_T]]:
    """Return which of some objects each item is, and these objects, once each, in their order."""
    number: dict[int, int] = {}
    found = [number.setdefault(id(item), len(number)) for item in items]
    return ints(found), list(dict(zip(found, items, strict=True)).values())


def ints(values: Sequence[int] | Sequence[tuple[int, ...]]) -> Ints:
    """Return integers as an array."""
    return np.array(values, dtype=np.int64)
