"""Prices: what each resource counts in the objective, in seconds of a step per unit.

A choice takes seconds of the device and bytes between the passes, a redistribution seconds of the
links. Weights say what these count, variable by variable and factor by factor where they are arrays:

    the sum of a step          device 1, links 1, byte_s 0
    communication only         device 0, links 1, byte_s 0                (AutoDDL's objective)
    k stages, m micro-batches  (m - 1) / k + 1 for what each micro-batch does, 1 / k for what comes once
    limited memory             byte_s > 0: the Lagrangian multiplier of the limit

With k = 2, m = 3 an op of 1 ms that each micro-batch repeats counts 2 ms, an update of 1 ms 0.5 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Domain, Floats, Ints

Weight: TypeAlias = float | Floats


@dataclass(frozen=True, eq=False)
class Prices:
    """Weights of the device's seconds by variable, of the links' seconds by factor, and of bytes.

    `held` multiplies, by variable, the bytes that memory limits count; `byte_s` are seconds that each
    of them counts.
    """

    device: Weight = 1.0
    links: Weight = 1.0
    held: Weight = 1.0
    byte_s: float = 0.0

    def choice_s(self, device_s: Floats, held_bytes: Ints) -> Floats:
        """Return what choices cost in all, from their weighted seconds and bytes."""
        return device_s + self.byte_s * held_bytes

    def apply(self, network: CostNetwork) -> CostNetwork:
        """Return the network with weighted costs; what shares arrays or tables still does."""
        variables, factors = network.variables, network.factors
        device, held = (
            np.broadcast_to(weight, len(network)) for weight in (self.device, self.held)
        )
        rows = np.stack([variables.domain.astype(float), device, held])
        rows, domain = np.unique(rows, axis=1, return_inverse=True)
        known: dict[object, tuple[Floats, Ints]] = {}  # by what shares arrays
        domains = []
        for number, seconds, amount in rows.T.tolist():
            old = variables.domains[int(number)]
            key = id(old.compute_s), id(old.memory_bytes), seconds, amount
            if key not in known:
                counted = (old.memory_bytes * amount).astype(np.int64)
                known[key] = self.choice_s(old.compute_s * seconds, counted), counted
            domains.append(Domain(old.choices, *known[key]))
        links = np.broadcast_to(self.links, len(factors.table))
        rows = np.stack([factors.table.astype(float), links])
        rows, table = np.unique(rows, axis=1, return_inverse=True)
        tables = [
            replace(factors.tables[int(number)], cost=factors.tables[int(number)].cost * weight)
            if weight != 1
            else factors.tables[int(number)]
            for number, weight in rows.T.tolist()
        ]
        return replace(
            network,
            variables=variables._replace(domains=domains, domain=domain.reshape(-1)),
            factors=factors._replace(tables=tables, table=table.reshape(-1)),
        )


SUM, COMMUNICATION_ONLY = Prices(), Prices(device=0.0)
