"""The compiled loops of the relaxation, against all ways to choose around one tensor."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from autoddl.perfmodel.redistribution import RedistributionTable
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.shards import all_states
from autoddl.search.network.cost_network import Floats, Ints
from autoddl.search.relaxation import srmp as sweeps
from autoddl.search.relaxation.factor_graph import Terms, graph_of
from experiments.lib.oneflow_problems import setting as setting_of
from tests.search.objects import Edge, Node, network_of
from tests.search.random_problems import MESH
from tests.support.clusters import cluster
from tests.support.terminals import on_terminal

STATES = 3


def graph(variables: Ints, states: Sequence[Ints], table: Floats) -> sweeps.FactorGraph:
    """Return the graph of one tensor: the variable at each end, the states of its choices."""
    nodes = [("op", f"op{v}", states[end]) for end, v in enumerate(variables.tolist())]
    by_node = [nodes[end] for end in np.argsort(variables)]
    names = all_states((8, 8), (2, 2))
    known = RedistributionTable((8, 8), tuple(itertools.islice(names, STATES)), table, table * 0)
    made, *read = variables.tolist()
    ops = [Op(f"op{v}", "made_up", (), ()) for v in range(len(nodes))]
    tensor = Tensor("t", (8, 8), "float32", "activation")
    setting = setting_of(Program(tuple(ops), (tensor,), (), (), (), None), MESH, cluster())
    objects = [
        Node(kind, name, tuple({} for _ in s), np.zeros(len(s)), np.zeros(len(s), np.int64))
        for kind, name, s in by_node
    ]
    ends = tuple(zip(read, states[1:], strict=True))
    names_ = tuple("abcdefgh"[: len(nodes)])
    network = network_of(setting, objects, [Edge("t", known, made, states[0], ends, names_)])
    terms = Terms(network)
    assert len(terms.table) == 1
    return graph_of(terms, network.variables.sizes, None)


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 5])
def test_readers_share_what_they_pay_for(readers: int) -> None:
    """Of a single tensor the bound is exact, and so is it for each choice of the last node."""
    for seed in range(20):
        rng = np.random.default_rng([readers, seed])
        table = rng.uniform(0, 10, (STATES, STATES)) * (1 - np.eye(STATES))
        numbers = rng.permutation(readers + 1)  # the node at each end: any of them may be the last
        states = [rng.integers(0, STATES, rng.integers(1, 5)) for _ in numbers]
        costs = [rng.uniform(0, 5, len(s)) for s in states]
        by_node = [costs[end] for end in np.argsort(numbers)]
        ends = np.arange(len(numbers))
        net = graph(numbers, states, table)
        cost = np.concatenate(by_node)
        messages, lent = np.zeros((len(ends), STATES)), np.full((len(ends), STATES), np.inf)
        sweeps.lend(net, cost, messages, lent, 1)
        for forward in (1, 0):
            sweeps.sweep(net, cost, messages, lent, forward)
        bound = sweeps.bound(net, cost, messages, lent, 0)
        excess = sweeps.excess(net, cost, messages, lent)[: len(by_node[0])]

        least = np.full(len(by_node[0]), np.inf)
        for choice in itertools.product(*(range(len(c)) for c in costs)):
            source, *wanted = (int(s[c]) for s, c in zip(states, choice, strict=True))
            total = sum(table[source, want] for want in set(wanted))
            total += sum(c[i] for c, i in zip(costs, choice, strict=True))
            first = choice[int(np.flatnonzero(numbers == 0)[0])]
            least[first] = min(least[first], total)
        assert bound == pytest.approx(least.min()), seed
        assert bound + excess == pytest.approx(least), seed


def test_loops_are_compiled_once_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(
        "from autoddl.compiled import compiled\n\n\n@compiled\ndef twice(x):\n    return 2 * x\n"
    )
    program = (
        "import importlib.util, sys; from pathlib import Path\n"
        "spec = importlib.util.spec_from_file_location('autoddl.loops', Path(sys.argv[1]) / 'loops.py')\n"
        "module = importlib.util.module_from_spec(spec); sys.modules[spec.name] = module\n"
        "spec.loader.exec_module(module); print(module.twice(3), module.twice(1.5))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    first, second = (on_terminal(command) for _ in range(2))
    assert first.count("compiling the search") == 1 and second == ""
    for file in (tmp_path / "__pycache__").glob("loops.*.nb?"):
        file.unlink()
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr) == ("6 3.0\n", "")
