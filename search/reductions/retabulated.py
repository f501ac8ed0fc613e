"""The network with boxings on streams of their own, from that with all on one, or the reverse."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from autoddl.engine.limits import ONEFLOW_LIMITS, Limits
from autoddl.perfmodel.redistribution import Redistributor
from autoddl.sbp.state import OWN
from autoddl.search.network.cost_network import CostNetwork


def on_stream(
    network: CostNetwork, compute_stream: bool, *, limits: Limits = ONEFLOW_LIMITS
) -> CostNetwork:
    """Return the network with other kinds of streams: only what boxings cost is another."""
    redistributor = Redistributor(
        network.mesh, network.profile, any_order=limits.any_order, compute_stream=compute_stream
    )
    factors, tables = network.factors, []
    for number, known in enumerate(factors.tables):
        tensor = network.program.tensors[factors.tensor[int((factors.table == number).argmax())]]
        own = OWN in chain(*known.states)
        tables.append(redistributor.table(known.shape, tensor.item_bytes, own=own))
    return replace(network, factors=factors._replace(tables=tables), compute_stream=compute_stream)
