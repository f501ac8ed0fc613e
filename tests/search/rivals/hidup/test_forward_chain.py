"""The chain of a training step: its duals, and that its seconds are those of the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.state import B, NdSbp, P, S
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.rivals.hidup import pareto
from autoddl.search.rivals.hidup.chain import Chain, ChainAssignment
from autoddl.search.rivals.hidup.forward_chain import HALF, dual, forward_chain
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import mlp, tied, transformer
from tests.support.zoo import experts

PROGRAMS = {
    "mlp": mlp(4096, (512, 2048, 512)), "transformer": transformer(2), "tied": tied(),
    "experts": experts(4, 4, 64, 64, 256),
}  # fmt: skip


def problem(name: str, mesh: str = "4") -> CostNetwork:
    return build(PROGRAMS[name], Mesh.parse(mesh), cluster())


def spent(chain: Chain, assignment: ChainAssignment) -> tuple[np.ndarray, np.ndarray]:
    """Return what an assignment computes and communicates for one half, by pass."""
    chosen = list(zip(chain.units, assignment.signatures, strict=True))
    comp = sum(unit.seconds[signature] for unit, signature in chosen)
    ends = [(unit.before[signature], unit.after[signature]) for unit, signature in chosen]
    comm = np.zeros(2)
    for begin in assignment.begins:
        comm += chain.moves[begin - 1][:, ends[begin - 1][1], ends[begin][0]]
    return comp, comm


def forward_s(network: CostNetwork, point: Sequence[int], variables: Sequence[int]) -> float:
    """Return the seconds of redistributions between some variables, each wanted state once."""
    total = 0.0
    for factor, table in enumerate(network.factors.table.tolist()):
        (producer, made), *readers = network.factors.ends(factor)
        if producer in variables:
            start = made[point[producer]]
            wanted = {int(states[point[v]]) for v, states in readers if v in variables}
            total += sum(network.factors.tables[table].cost[start, goal] for goal in wanted)
    return total


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_chain_has_the_seconds_of_the_network(name: str) -> None:
    network = problem(name)
    made = forward_chain(network)
    assignment = pareto.search(made.chain)
    point = dict(made.chosen(assignment))
    comp, comm = spent(made.chain, assignment)
    variables = network.variables
    whole = sum(variables.of(v).compute_s[choice] for v, choice in point.items())
    assert comp[0] == pytest.approx(HALF * whole)
    every = np.zeros(len(network), dtype=np.int64)
    every[list(point)] = list(point.values())
    moved = HALF * forward_s(network, every, list(point))
    assert comm[0] >= moved * (1 - 1e-9)  # a tensor may take several moves
    if name == "mlp":
        assert comm[0] == pytest.approx(moved) and assignment.begins
    assert comp[1] > comp[0]  # a product has two gradients


def test_the_backward_pass_moves_duals() -> None:
    network = problem("mlp")
    made = forward_chain(network)
    factors, number = network.factors, network.program.columns.number
    first = network.program.ops[0]
    assert first.type == "matmul"
    factor = factors.tensor.tolist().index(number[first.outputs[0][1]])
    table = factors.tables[factors.table[factor]]
    b, s, p = (NdSbp((state,)) for state in (B, S(0), P))
    assert [dual(state, table) for state in (b, s, p)] == [p, s, b]
    wanted = {(a, c): (table.cost[table.index[a], table.index[c]],
                       table.cost[table.index[dual(c, table)], table.index[dual(a, table)]])
              for a in (b, s, p) for c in (b, s, p)}  # fmt: skip
    found = {tuple(pair) for pair in made.chain.moves[0].reshape(2, -1).T.tolist()}
    for ahead, back in wanted.values():
        assert any(np.allclose((HALF * ahead, HALF * back), pair, rtol=1e-12) for pair in found)
    ahead, back = wanted[s, b]  # an all-gather, and a reduce-scatter from P
    assert ahead > 0 and back == table.cost[table.index[p], table.index[s]]


def test_the_loss_is_partial_in_the_end() -> None:
    network = problem("mlp")
    made = forward_chain(network)
    assert len(np.unique(made.chain.units[-1].after)) == 2  # it might be broadcast
    assert len(made.chain.ends) == 1
    variable, choice = list(made.chosen(pareto.search(made.chain)))[-1]
    signature = network.variables.of(variable).choices[choice]
    assert signature[network.program.producer[network.program.loss or ""].outputs[0][0]] == (P,)


def test_one_device_has_one_form() -> None:
    made = forward_chain(problem("transformer", "1"))
    found = pareto.search(made.chain)
    assert found.begins == () and np.isfinite(found.seconds)


def test_what_is_no_training_step_is_refused() -> None:
    x, y = (Tensor(n, (8, 8), "float32", r) for n, r in (("x", "input"), ("y", "activation")))
    op = Op("a", "relu", (("x_0", "x"),), (("y_0", "y"),))
    program = Program((op,), (x, y), ("x",), ("y",), (), None)
    with pytest.raises(AutoDDLError, match="training steps"):
        forward_chain(build(program, Mesh.parse("4"), cluster()))
