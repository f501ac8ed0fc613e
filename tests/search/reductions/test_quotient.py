"""Problems without repeated layers: against the same model built with fewer layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.quotient import Quotient, quotient
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib import oneflow_problems as builder
from tests.search.objects import nodes_of
from tests.support import programs
from tests.support.clusters import cluster
from tests.support.programs import Builder, transformer

PROFILE = cluster()


def problem(program: Program) -> CostNetwork:
    return builder.build(program, Mesh.parse("2x2"), PROFILE)


def stack(hidden: Sequence[int], batch: int = 8, width: int = 16) -> Program:
    """Return residual blocks whose hidden sizes are given."""
    g = Builder()
    x, target = g.input((batch, width)), g.input((batch, width))
    with g.module("model"):
        with g.module("first"):
            x = programs.linear(g, x, width)
        for number, size in enumerate(hidden):
            with g.module(f"blocks.{number}"):
                with g.module("fc1"):
                    y = programs.activation(g, programs.linear(g, x, size), "gelu")
                with g.module("fc2"):
                    x = programs.residual(g, x, programs.linear(g, y, width))
    return g.program(programs.mse(g, x, target), "sgd")


@pytest.mark.parametrize(
    ("long", "short"),
    [
        (transformer(layers=7), transformer(layers=3)),
        # the last block of a stack differs: nothing adds to its gradient
        (stack([32] * 8), stack([32] * 4)),
        (stack([32, 64] * 5), stack([32, 64] * 4)),  # layers take turns
        (stack([32, 64] * 5 + [32]), stack([32, 64] * 3 + [32])),
        (stack([64, *[32] * 6, 48]), stack([64, *[32] * 3, 48])),
    ],
)
def test_it_is_the_problem_of_the_model_with_fewer_layers(long: Program, short: Program) -> None:
    found, expected = quotient(problem(long)).network, problem(short)
    assert found.variables.sizes.tolist() == expected.variables.sizes.tolist()
    for seed in range(3):
        point = random_assignment(expected, seed)
        assert found.cost_s(point) == pytest.approx(expected.cost_s(point), rel=1e-12)
        assert found.memory_bytes(point) == expected.memory_bytes(point)


def test_layers_that_were_left_out_cost_as_much_as_their_stand_in() -> None:
    """With alike layers each further one adds the same: cost and memory are linear in their number."""
    costs, bytes_ = [], []
    for layers in (5, 6, 7, 8):
        whole = problem(transformer(layers))
        short = quotient(whole)
        choices = {}
        for node in nodes_of(short.network):  # alike: drawn by type, not by layer
            key = whole.program.op[node.name].type if node.kind == "op" else node.kind
            choices.setdefault(key, len(choices))
        point = [
            (choices[whole.program.op[n.name].type if n.kind == "op" else n.kind]) % len(n.choices)
            for n in nodes_of(short.network)
        ]
        costs.append(whole.cost_s(short.invert(point)))
        bytes_.append(whole.memory_bytes(short.invert(point)))
    for values in (costs, bytes_):
        steps = [b - a for a, b in pairwise(values)]
        assert steps == pytest.approx([steps[0]] * 3) and steps[0] > 0


@pytest.mark.parametrize("program", [transformer(layers=3), stack([32, 48, 64, 80, 96])])
def test_without_enough_equal_layers_it_is_the_whole_problem(program: Program) -> None:
    whole = problem(program)
    short = quotient(whole)
    assert short.network is whole
    assert short.invert(random_assignment(whole, 0)) == random_assignment(whole, 0)


def test_a_pinned_layer_is_not_equal_to_the_others() -> None:
    whole = builder.build(
        transformer(layers=7), Mesh.parse("2x2"), PROFILE, pin={"*blocks.3.fc1.weight": "S0,B"}
    )
    assert "model.blocks.3.fc1.weight" in quotient(whole).network.variables.name


@pytest.mark.parametrize("remain", [(2, 1), (2, 2), (3, 2)])
def test_a_fold_counts_edges_in_their_order(remain: tuple[int, int]) -> None:
    some = Quotient.apply(problem(stack([32] * 12)), *remain)
    assert some.exact and len(some.variables) < len(some.representative)
    factor, begin = some.scopes.factor.tolist(), some.scopes.begin.tolist()
    expected = Counter([tuple(factor[a:b]) for a, b in pairwise(begin)])
    assert any(len(set(ends)) > 1 for ends in expected)  # at the gap
    found = some.multiplicities
    rows = [tuple(found.factor[a:b].tolist()) for a, b in pairwise(found.begin.tolist())]
    assert list(zip(rows, found.times.tolist(), strict=True)) == list(expected.items())
    assert found.variable.sum() == len(some.representative)
