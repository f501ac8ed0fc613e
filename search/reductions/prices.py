"""Prices: what each resource counts in the objective, in seconds of a step per unit.

A choice takes seconds of the device and bytes between the passes, a redistribution seconds of the
links. Prices weigh these, variable by variable and factor by factor where they are arrays:

    the sum of a step          device 1, links 1
    communication only         device 0, links 1                          (AutoDDL's objective)
    k stages, m micro-batches  (m - 1) / k + 1 for what each micro-batch does, 1 / k for what comes once
    a Lagrangian multiplier    device 1, links 1, byte_s > 0              (relaxation/lagrangian.py)

With k = 2, m = 3 an op of 1 ms that each micro-batch repeats counts 2 ms, an update of 1 ms 0.5 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from autoddl.search.network.cost_network import CostNetwork, Domain, Floats

Weight: TypeAlias = float | Floats


@dataclass(frozen=True, eq=False)
class Prices:
    """Weights of the device's seconds and of bytes by variable, of the links' seconds by factor.

    `held` multiplies bytes, which memory limits count; `byte_s` are seconds that a byte counts.
    """

    device: Weight = 1.0
    links: Weight = 1.0
    held: Weight = 1.0
    byte_s: float = 0.0

    def apply(self, network: CostNetwork) -> CostNetwork:
        """Return the network with weighted costs; what shares arrays or tables still does."""
        variables, factors = network.variables, network.factors
        device, held = (np.broadcast_to(w, len(network)) for w in (self.device, self.held))
        rows = np.stack([variables.domain.astype(float), device, held])
        rows, domain = np.unique(rows, axis=1, return_inverse=True)
        known: dict[object, Any] = {}
        domains = [
            self._weighted(variables.domains[int(number)], seconds, amount, known)
            for number, seconds, amount in rows.T.tolist()
        ]
        links = np.broadcast_to(self.links, len(factors.table))
        rows = np.stack([factors.table.astype(float), links])
        rows, table = np.unique(rows, axis=1, return_inverse=True)
        tables = []
        for number, weight in rows.T.tolist():
            old = factors.tables[int(number)]
            tables.append(old if weight == 1 else replace(old, cost=old.cost * weight))
        return replace(
            network,
            variables=variables._replace(domains=domains, domain=domain.reshape(-1)),
            factors=factors._replace(tables=tables, table=table.reshape(-1)),
        )

    def _weighted(
        self, old: Domain, seconds: float, amount: float, known: dict[object, Any]
    ) -> Domain:
        """Return a domain with weighted costs; `known` are those of the same arrays."""
        key = id(old.compute_s), id(old.memory_bytes), seconds, amount
        if key not in known:
            held = (old.memory_bytes * amount).astype(np.int64)
            known[key] = old.compute_s * seconds + self.byte_s * held, held
        return Domain(old.choices, *known[key])


SUM, COMMUNICATION_ONLY = Prices(), Prices(device=0.0)
