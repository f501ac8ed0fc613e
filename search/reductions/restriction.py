"""Domain restriction: the same network with fewer choices, those that may be part of a better assignment.

domains (a, b, c), (p, q) restricted to (0, 2), (1): the choices (1, 0) there stand for (2, 1) here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Domain, Ints, as_ints
from autoddl.search.result import Assignment, Point


@dataclass(frozen=True, eq=False)
class Restriction:
    """`network` has of each variable's choices only its `domains`."""

    network: CostNetwork
    domains: Sequence[Ints]

    @classmethod
    def identity(cls, network: CostNetwork) -> Restriction:
        """Return the network with all its choices."""
        return cls(network, everything(network))

    @classmethod
    def apply(cls, network: CostNetwork, domains: Sequence[Ints]) -> Restriction:
        """Restrict a network."""
        return cls(restricted(network, domains), domains)

    @cached_property
    def _joined(self) -> tuple[Ints, Ints]:
        begins = np.cumsum([0, *map(len, self.domains)])[:-1]
        return np.concatenate(self.domains), begins

    def invert(self, assignment: Point) -> Assignment:
        """Return the assignment of the whole network that one of the restricted network stands for."""
        choices, begins = self._joined
        return Assignment(choices[begins + as_ints(assignment)])

    def within(self, domains: Sequence[Ints]) -> list[Ints]:
        """Return the choices of the whole network that some of the restricted one's are."""
        return [mine[some] for mine, some in zip(self.domains, domains, strict=True)]

    def narrowed(self, domains: Sequence[Ints]) -> Restriction:
        """Return the restriction of the whole network to some choices of the restricted one."""
        return Restriction(restricted(self.network, domains), self.within(domains))


def everything(network: CostNetwork) -> list[Ints]:
    """Return all choices of every variable."""
    every = [np.arange(len(domain.choices)) for domain in network.variables.domains]
    return [every[number] for number in network.variables.domain.tolist()]


def restricted(network: CostNetwork, domains: Sequence[Ints]) -> CostNetwork:
    """Return a network with only the choices of `domains`, by variable.

    Arrays that variables share are shared afterwards too, where the same choices are left.
    """
    variables, factors = network.variables, network.factors
    numbers: dict[bytes, int] = {}
    names = [numbers.setdefault(domain.tobytes(), len(numbers)) for domain in domains]
    different = list(dict(zip(names, domains, strict=True)).values())
    left, count = np.array(names, dtype=np.int64), len(different)
    known: dict[tuple[int, int], Any] = {}

    def some(values: Any, name: int) -> Any:
        """Return values of the choices that are left: one object for each two objects."""
        key, kept = (id(values), name), different[name]
        if key not in known:
            listed = isinstance(values, tuple)
            known[key] = tuple([values[i] for i in kept.tolist()]) if listed else values[kept]
        return known[key]

    pairs, which = np.unique(variables.domain * count + left, return_inverse=True)
    places = [(variables.domains[pair // count], pair % count) for pair in pairs.tolist()]
    fewer = [Domain(*[some(values, name) for values in old]) for old, name in places]
    pairs, states = np.unique(factors.states * count + left[factors.variable], return_inverse=True)
    arrays = [factors.arrays[pair // count][different[pair % count]] for pair in pairs.tolist()]
    return replace(
        network,
        variables=variables._replace(domains=fewer, domain=which),
        factors=factors._replace(arrays=arrays, states=states),
    )
