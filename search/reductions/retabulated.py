"""The network at other prices of boxings: on streams of their own or all on one, or weighted."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from autoddl.engine.model import StreamUse
from autoddl.perfmodel.redistribution import RedistributionTable, Redistributor
from autoddl.sbp.state import OWN
from autoddl.search.network.cost_network import CostNetwork


def on_streams(network: CostNetwork, streams: StreamUse) -> CostNetwork:
    """Return the network with another use of the engine's streams: only what boxings cost is another."""
    setting, factors = replace(network.setting, streams=streams), network.factors
    count = range(len(factors.tables))
    tables = [table(network, number, setting.redistributor) for number in count]
    return replace(network, setting=setting, factors=factors._replace(tables=tables))


def table(network: CostNetwork, number: int, redistributor: Redistributor) -> RedistributionTable:
    """Return one of the tables of a network with the prices of another redistributor."""
    factors = network.factors
    tensor = network.program.tensors[factors.tensor[int((factors.table == number).argmax())]]
    known = factors.tables[number]
    own = OWN in chain(*known.states)
    return redistributor.table(known.shape, tensor.item_bytes, own=own, strided=known.strided)
