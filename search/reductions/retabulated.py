"""The network at other prices of boxings: on streams of their own or all on one, or weighted."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from autoddl.engine.limits import ONEFLOW_LIMITS, Limits
from autoddl.perfmodel.redistribution import RedistributionTable, Redistributor
from autoddl.sbp.state import OWN
from autoddl.search.network.cost_network import CostNetwork


def on_stream(
    network: CostNetwork, compute_stream: bool, *, limits: Limits = ONEFLOW_LIMITS
) -> CostNetwork:
    """Return the network with other kinds of streams: only what boxings cost is another."""
    redistributor = Redistributor(
        network.mesh, network.profile, any_order=limits.any_order, compute_stream=compute_stream
    )
    factors = network.factors
    tables = [table(network, number, redistributor) for number in range(len(factors.tables))]
    return replace(network, factors=factors._replace(tables=tables), compute_stream=compute_stream)


def table(network: CostNetwork, number: int, redistributor: Redistributor) -> RedistributionTable:
    """Return one of the tables of a network with the prices of another redistributor."""
    factors = network.factors
    tensor = network.program.tensors[factors.tensor[int((factors.table == number).argmax())]]
    known = factors.tables[number]
    own = OWN in chain(*known.states)
    return redistributor.table(known.shape, tensor.item_bytes, own=own)
