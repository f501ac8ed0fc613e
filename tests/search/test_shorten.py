"""Problems without repeated layers: against the same model built with fewer layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search import builder
from autoddl.search.problem import Problem
from autoddl.search.random import random_assignment
from autoddl.search.shorten import shorten
from tests import programs
from tests.clusters import cluster
from tests.programs import Builder, transformer

PROFILE = cluster()


def problem(program: Program) -> Problem:
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
    found, expected = shorten(problem(long)).problem, problem(short)
    assert [len(n.choices) for n in found.nodes] == [len(n.choices) for n in expected.nodes]
    for seed in range(3):
        point = random_assignment(expected, seed)
        assert found.cost_s(point) == pytest.approx(expected.cost_s(point), rel=1e-12)
        assert found.memory_bytes(point) == expected.memory_bytes(point)


def test_layers_that_were_left_out_cost_as_much_as_their_stand_in() -> None:
    """With alike layers each further one adds the same: cost and memory are linear in their number."""
    costs, bytes_ = [], []
    for layers in (5, 6, 7, 8):
        whole = problem(transformer(layers))
        short = shorten(whole)
        choices = {}
        for node in short.problem.nodes:  # alike: drawn by type, not by layer
            key = whole.program.op[node.name].type if node.kind == "op" else node.kind
            choices.setdefault(key, len(choices))
        point = [
            (choices[whole.program.op[n.name].type if n.kind == "op" else n.kind]) % len(n.choices)
            for n in short.problem.nodes
        ]
        costs.append(whole.cost_s(short.extended(point)))
        bytes_.append(whole.memory_bytes(short.extended(point)))
    for values in (costs, bytes_):
        steps = [b - a for a, b in pairwise(values)]
        assert steps == pytest.approx([steps[0]] * 3) and steps[0] > 0


@pytest.mark.parametrize("program", [transformer(layers=3), stack([32, 48, 64, 80, 96])])
def test_without_enough_equal_layers_it_is_the_whole_problem(program: Program) -> None:
    whole = problem(program)
    short = shorten(whole)
    assert short.problem is whole
    assert short.extended(random_assignment(whole, 0)) == random_assignment(whole, 0)


def test_a_pinned_layer_is_not_equal_to_the_others() -> None:
    whole = builder.build(
        transformer(layers=7), Mesh.parse("2x2"), PROFILE, pin={"*blocks.3.fc1.weight": "S0,B"}
    )
    assert "model.blocks.3.fc1.weight" in {n.name for n in shorten(whole).problem.nodes}


@pytest.mark.parametrize("remain", [(2, 1), (2, 2), (3, 2)])
def test_a_fold_counts_edges_in_their_order(remain: tuple[int, int]) -> None:
    some = shorten(problem(stack([32] * 12)), *remain)
    assert some.folds and len(some.nodes) < len(some.place)
    expected = Counter(some.edges())
    assert any(len(set(edges)) > 1 for edges in expected)  # at the gap
    assert list(some.fold().edges.items()) == list(expected.items())
