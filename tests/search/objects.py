"""Variables and factors of a cost network as objects, which tests make and look at one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

import numpy as np

from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.search.network.cost_network import (
    CostNetwork,
    Domain,
    Factors,
    Floats,
    Ints,
    Setting,
    Variables,
    ints,
    shared,
)
from autoddl.search.relaxation.dual import Dual


@dataclass(frozen=True, eq=False)
class Node:
    """A variable: `kind`, `name`, and what it chooses from."""

    kind: str
    name: str
    choices: tuple[NdSignature, ...]
    compute_s: Floats
    memory_bytes: Ints


@dataclass(frozen=True, eq=False)
class Edge:
    """A factor: who makes a tensor, who reads it, and in which state under each of their choices."""

    tensor: str
    table: RedistributionTable
    producer: int
    source: Ints
    readers: tuple[tuple[int, Ints], ...]
    operands: tuple[str, ...]

    def seconds(self, assignment: Sequence[int]) -> float:
        """Return the redistribution time under an assignment: once per wanted state."""
        row = self.table.cost[self.source[assignment[self.producer]]]
        return float(sum(row[i] for i in self.wanted(assignment)))

    def wanted(self, assignment: Sequence[int]) -> set[int]:
        """Return the states that the readers want, as indices into the table."""
        return {int(states[assignment[node]]) for node, states in self.readers}


def network_of(setting: Setting, nodes: Sequence[Node], edges: Sequence[Edge]) -> CostNetwork:
    """Return the network of some nodes and edges; equal arrays are shared."""
    program = setting.program
    kinds = tuple(dict.fromkeys(node.kind for node in nodes))
    keys = [(id(n.choices), id(n.compute_s), id(n.memory_bytes)) for n in nodes]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    first = {key: node for key, node in reversed(list(zip(keys, nodes, strict=True)))}
    place = program.columns.place
    variables = Variables(
        kinds, ints([kinds.index(node.kind) for node in nodes]), [node.name for node in nodes],
        [Domain(n.choices, n.compute_s, n.memory_bytes) for n in map(first.__getitem__, number)],
        ints([number[key] for key in keys]),
        ints([place[n.name] if n.kind == "op" else -1 for n in nodes]),
    )  # fmt: skip
    ends = list(chain.from_iterable([((e.producer, e.source), *e.readers) for e in edges]))
    table, tables = shared([edge.table for edge in edges])
    states, arrays = shared([array for _, array in ends])
    names: dict[str, int] = {}
    operand = [names.setdefault(name, len(names)) for edge in edges for name in edge.operands]
    begin = np.cumsum([0, *[1 + len(edge.readers) for edge in edges]])
    factors = Factors(
        ints([program.columns.number[edge.tensor] for edge in edges]), tables, table, begin,
        ints([node for node, _ in ends]), arrays, states, tuple(names), ints(operand),
    )  # fmt: skip
    return CostNetwork(setting, variables, factors)


@lru_cache(maxsize=64)
def nodes_of(network: CostNetwork) -> tuple[Node, ...]:
    """Return the variables of a network."""
    v = network.variables
    return tuple(
        Node(v.kinds[kind], name, *v.domains[domain])
        for kind, name, domain in zip(v.kind.tolist(), v.name, v.domain.tolist(), strict=True)
    )


@lru_cache(maxsize=64)
def edges_of(network: CostNetwork) -> tuple[Edge, ...]:
    """Return the factors of a network."""
    f = network.factors
    found = []
    for factor, (tensor, table) in enumerate(zip(f.tensor.tolist(), f.table.tolist(), strict=True)):
        (producer, source), *readers = f.ends(factor)
        names = f.operand[f.begin[factor] : f.begin[factor + 1]].tolist()
        name = network.program.tensors[tensor].name
        operands = tuple([f.operands[number] for number in names])
        found.append(Edge(name, f.tables[table], producer, source, tuple(readers), operands))
    return tuple(found)


def replaced(
    network: CostNetwork, nodes: Sequence[Node] | None = None, edges: Sequence[Edge] | None = None
) -> CostNetwork:
    """Return a network with other nodes or edges."""
    made = network_of(
        network.setting,
        nodes_of(network) if nodes is None else nodes,
        edges_of(network) if edges is None else edges,
    )
    return replace(network, variables=made.variables, factors=made.factors)


def position_of(network: CostNetwork) -> dict[tuple[str, str], int]:
    """Return the variables by kind and name."""
    return {(node.kind, node.name): index for index, node in enumerate(nodes_of(network))}


def reduced_costs(dual: Dual) -> list[np.ndarray]:
    """Return the reduced costs of the choices of each variable."""
    return np.split(dual.reduced_costs(), dual.network.variables.sizes.cumsum()[:-1])
