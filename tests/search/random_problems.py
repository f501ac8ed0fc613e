"""Random cost networks, made without the builder, and their costs by brute force.

Trees, chains of equal blocks and graphs with cycles. As in what the builder makes, choice 0 of every
node is whole everywhere (state 0 of every table), so it is always feasible without a memory limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.shards import all_states
from autoddl.sbp.state import broadcast
from autoddl.search.network.cost_network import CostNetwork, Floats, Ints
from experiments.lib.oneflow_problems import setting as setting_of
from tests.search.objects import Edge, Node, edges_of, network_of, nodes_of
from tests.support.clusters import cluster

MESH = Mesh.parse("2x2")
SHAPE = (8, 8)
STATES = sorted(all_states(SHAPE, MESH.shape), key=lambda s: s != broadcast(2))
TICK_S = 1e-6  # costs are of this size
GIB = 1024**3


@dataclass
class Wiring:
    """Who makes and who reads each tensor. Nodes of one kind are equal, and so are tensors."""

    kinds: list[Hashable] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    tensors: list[tuple[int, Hashable]] = field(default_factory=list)

    def node(self, reads: list[int], kind: Hashable = None) -> int:
        """Add a node that reads some tensors; without a kind it has one of its own."""
        self.kinds.append(("only", len(self.kinds)) if kind is None else kind)
        self.reads.append(reads)
        return len(self.kinds) - 1

    def tensor(self, producer: int, kind: Hashable = None) -> int:
        """Add a tensor that a node makes."""
        self.tensors.append((producer, ("only", len(self.tensors)) if kind is None else kind))
        return len(self.tensors) - 1

    def readers(self, tensor: int) -> int:
        """Return how often a tensor is read."""
        return sum(reads.count(tensor) for reads in self.reads)


def tree(seed: int, size: int = 6) -> CostNetwork:
    """Return a problem whose nodes and tensors form a tree."""
    rng, w = np.random.default_rng((1, seed)), Wiring()
    parts: list[list[int]] = []  # the nodes that hang together
    for number in range(size):
        most = len(parts) if number == size - 1 else min(2, len(parts))
        joined = most if number == size - 1 else int(rng.integers(most + 1))
        picked = [parts.pop(int(rng.integers(len(parts)))) for _ in range(joined)]
        node = w.node([_tensor_of(rng, w, part) for part in picked])
        parts.append([node, *(n for part in picked for n in part)])
    return _problem(rng, w)


def graph(seed: int, size: int = 6, readers: int = 4) -> CostNetwork:
    """Return a problem with cycles; a node may read a tensor twice."""
    rng, w = np.random.default_rng((2, seed)), Wiring()
    for number in range(size):
        reads: list[int] = []
        for _ in range(int(rng.integers(1, 4)) if number else 0):
            reads.append(_tensor_of(rng, w, range(number), readers - len(reads)))
        w.node(reads)
    return _problem(rng, w)


def hub(seed: int, size: int = 6) -> CostNetwork:
    """Return a problem with one tensor that all other nodes read, which also read one another."""
    rng, w = np.random.default_rng((3, seed)), Wiring()
    hub = w.tensor(w.node([]))
    for number in range(1, size):
        own = [w.tensor(int(rng.integers(1, number)))] if number > 1 and rng.random() < 0.5 else []
        w.node([hub, *own])
    return _problem(rng, w)


def chain(seed: int, blocks: int = 3, size: int = 2) -> CostNetwork:
    """Return a problem of equal blocks in a row, which share tables and arrays, between two ends."""
    rng, w = np.random.default_rng((4, seed)), Wiring()
    inner = [sorted(set(rng.integers(0, j, 2).tolist())) for j in range(1, size)]
    skip = rng.random() < 0.5  # the last node of a block also reads what comes into it
    carried = w.tensor(w.node([]), "carried")
    for _ in range(blocks):
        nodes = [w.node([carried], 0)]
        made: list[int] = []
        for j in range(1, size):
            made.append(w.tensor(nodes[-1], ("inner", j)))
            reads = [made[i] for i in inner[j - 1]]
            nodes.append(w.node([*reads, carried] if skip and j == size - 1 else reads, j))
        carried = w.tensor(nodes[-1], "carried")
    w.node([carried])
    return _problem(rng, w)


def layers(seed: int, blocks: int = 5, size: int = 1) -> CostNetwork:
    """Return a chain whose program says which block is which layer of a model."""
    p = chain(seed, blocks, size)
    ops = tuple(
        replace(op, module=f"blocks.{(i - 1) // size}") if 0 < i <= blocks * size else op
        for i, op in enumerate(p.program.ops)
    )
    setting = setting_of(replace(p.program, ops=ops), MESH, p.profile)
    return network_of(setting, nodes_of(p), edges_of(p))


def every_cost(problem: CostNetwork) -> tuple[Floats, Ints]:
    """Return (seconds, bytes) of all assignments, one axis per node."""
    counts = problem.variables.sizes.tolist()
    points = np.indices(counts).reshape(len(counts), -1)
    seconds, memory = np.zeros(points.shape[1]), np.zeros(points.shape[1], dtype=np.int64)
    for node, choice in zip(nodes_of(problem), points, strict=True):
        seconds += node.compute_s[choice]
        memory += node.memory_bytes[choice]
    for edge in edges_of(problem):
        rows = edge.table.cost[edge.source[points[edge.producer]]]
        for state in range(len(edge.table.states)):
            wanted = [states[points[node]] == state for node, states in edge.readers]
            seconds += np.where(np.any(wanted, axis=0), rows[:, state], 0.0)
    return seconds.reshape(counts), memory.reshape(counts)


def _tensor_of(rng: np.random.Generator, w: Wiring, nodes: range | list[int], most: int = 4) -> int:
    """Return a tensor that one of the nodes makes: a new one, or one with less than `most` readers."""
    old = [t for t, (n, _) in enumerate(w.tensors) if n in nodes and w.readers(t) < most]
    if old and rng.random() < 0.6:
        return old[int(rng.integers(len(old)))]
    return w.tensor(int(rng.choice(list(nodes))))


def _problem(rng: np.random.Generator, w: Wiring) -> CostNetwork:
    """Draw choices, costs and memory for a wiring; equal kinds get the same objects."""
    operands = [[(f"in_{i}", t) for i, t in enumerate(reads)] for reads in w.reads]
    outputs: list[list[tuple[str, int]]] = [[] for _ in w.kinds]
    for tensor, (producer, _) in enumerate(w.tensors):
        outputs[producer].append((f"out_{len(outputs[producer])}", tensor))
    made: dict[Hashable, tuple[tuple[NdSignature, ...], Floats, Ints, dict[str, Ints]]] = {}
    tables = {kind: _table(rng) for kind in dict.fromkeys(kind for _, kind in w.tensors)}
    unit = (1, GIB)[int(rng.integers(2))]
    nodes = []
    for index, kind in enumerate(w.kinds):
        if kind not in made:
            shapes = {o: tables[w.tensors[t][1]] for o, t in operands[index] + outputs[index]}
            made[kind] = _choices(rng, shapes, unit)
        choices, seconds, memory, _ = made[kind]
        nodes.append(Node("op", f"op{index}", choices, seconds, memory))
    readers: dict[int, list[tuple[int, Ints]]] = defaultdict(list)
    names: dict[int, list[str]] = {}
    sources = {}
    for index, kind in enumerate(w.kinds):
        arrays = made[kind][3]
        sources |= {tensor: arrays[operand] for operand, tensor in outputs[index]}
        names |= {tensor: [operand] for operand, tensor in outputs[index]}
    for index, kind in enumerate(w.kinds):
        for operand, tensor in operands[index]:
            readers[tensor].append((index, made[kind][3][operand]))
            names[tensor].append(operand)
    edges = tuple(
        Edge(
            f"t{t}", tables[w.tensors[t][1]], w.tensors[t][0], sources[t], tuple(readers[t]),
            tuple(names[t]),
        )
        for t in sorted(readers)
    )  # fmt: skip
    program = _program(operands, outputs, len(w.tensors))
    return network_of(setting_of(program, MESH, cluster()), nodes, edges)


def _choices(
    rng: np.random.Generator, tables: dict[str, RedistributionTable], unit: int
) -> tuple[tuple[NdSignature, ...], Floats, Ints, dict[str, Ints]]:
    count = int(rng.integers(2, 7))
    arrays = {o: rng.integers(0, len(table.states), count) for o, table in tables.items()}
    for array in arrays.values():
        array[0] = 0
    choices = tuple({o: tables[o].states[a[c]] for o, a in arrays.items()} for c in range(count))
    seconds = _costs(rng, (count,)) * 2
    seconds[0] += TICK_S
    memory = rng.integers(0, 9, count) * unit + rng.integers(0, 2, count)
    return choices, seconds, memory, arrays


def _costs(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Draw costs: any numbers, or few different ones, so that sums are equal."""
    if rng.random() < 0.3:
        return TICK_S * rng.integers(0, 4, shape)
    return TICK_S * rng.uniform(0.01, 4, shape)


def _table(rng: np.random.Generator) -> RedistributionTable:
    """Draw a table of 2 to 6 states; most satisfy the triangle inequality, some have no way."""
    count = int(rng.integers(2, 7))
    cost = _costs(rng, (count, count))
    if rng.random() < 0.4:
        cost[rng.random((count, count)) < 0.3] = np.inf
    np.fill_diagonal(cost, 0.0)
    if rng.random() < 0.7:
        for between in range(count):
            cost = np.minimum(cost, cost[:, [between]] + cost[[between], :])
    straight = np.tile(np.arange(count), (count, 1))
    return RedistributionTable(SHAPE, tuple(STATES[:count]), cost, straight)


def _program(
    inputs: list[list[tuple[str, int]]], outputs: list[list[tuple[str, int]]], tensors: int
) -> Program:
    """Return ops of a made-up type that are wired alike; costs don't come from it."""

    def named(side: list[tuple[str, int]]) -> tuple[tuple[str, str], ...]:
        return tuple((operand, f"t{tensor}") for operand, tensor in side)

    pairs = enumerate(zip(inputs, outputs, strict=True))
    ops = tuple(Op(f"op{i}", "made_up", named(reads), named(makes)) for i, (reads, makes) in pairs)
    values = tuple(Tensor(f"t{t}", SHAPE, "float32", "activation") for t in range(tensors))
    return Program(ops, values, (), (), (), None)
