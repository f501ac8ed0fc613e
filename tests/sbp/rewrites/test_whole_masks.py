"""Masks that every device draws whole: the numbers of the op that sees all, by the rules' references."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.in_parts.whole_masks import (
    PREFIX,
    has_whole_masks,
    in_one_dropout,
    with_whole_masks,
)
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.state import NdSbp
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from tests.sbp.rewrites.test_halves import drawn
from tests.support.clusters import cluster
from tests.support.programs import Builder, linear, mse

RATE = 0.10000000149011612
SCALE = 1.1111111640930176


def dropped(g: Builder, x: str, rate: float = RATE) -> str:
    """Add a dropout with its backward pass."""
    shape = g.shape(x)
    mask, y = g.op("dropout", "in_0 -> mask_0 out_0", [x], shape, shape, rate=rate)

    def backward(dy: str) -> None:
        g.give(
            x, lambda: g.op("dropout_grad", "dy_0 mask_0 -> dx_0", [dy, mask], shape, scale=SCALE)
        )

    return g.back(y, backward)


def program() -> Program:
    """Return that of three dropouts, of two shapes."""
    g = Builder()
    x, target = g.input((4, 6)), g.input((4, 8))
    for layer, features in enumerate((6, 6, 8)):
        with g.module(f"model.layers.{layer}"):
            x = dropped(g, linear(g, x, features))
    return g.program(mse(g, x, target), "sgd")


@pytest.mark.parametrize(("alike", "masks"), [(True, 2), (False, 3)])
def test_losses_and_gradients_are_those_of_one_device(alike: bool, masks: int) -> None:
    whole = program()
    parts, values = with_whole_masks(whole, alike=alike), drawn(whole)
    assert has_whole_masks(parts) and not has_whole_masks(whole)
    drawing = [op for op in parts.ops if op.type == "dropout"]
    assert len(drawing) == masks and all(op.name.startswith(PREFIX) for op in drawing)
    expected, found = run_program(whole, values), run_program(parts, values)
    for name in (whole.loss, *(p.gradient for p in whole.parameters)):
        np.testing.assert_allclose(found[str(name)], expected[str(name)], rtol=1e-4, atol=1e-9)
    zeros = [np.count_nonzero(found[f"{op.name}/mask_0"] == 0) for op in drawing]
    assert sum(zeros) > 0


def test_what_applies_a_mask_can_be_cut_and_what_draws_it_cannot() -> None:
    parts, cut = with_whole_masks(program(), alike=True), NdSbp.parse("S0")
    for op in parts.ops:
        if op.type in ("dropout", "dropout_grad"):
            every = nd_signatures(OpView.of(op, parts.shapes(op)), (2,))
            assert (op.type == "dropout_grad") == any(cut in found.values() for found in every)


def test_one_op_again_is_the_program_that_was_parted() -> None:
    whole = program()
    network = build(with_whole_masks(whole, alike=True), Mesh.parse("2x2"), cluster())
    for seed in range(3):
        found = Assigned(network, random_assignment(network, seed)).layout
        layout = in_one_dropout(found)
        assert layout.program.ops == whole.ops
        assert {t.name for t in layout.program.tensors} == {t.name for t in whole.tensors}
        for op in whole.ops:
            assert layout.signatures[op.name].keys() == {name for name, _ in op.operands}
        assert in_one_dropout(layout) is layout


def test_without_dropout_nothing_changes() -> None:
    g = Builder()
    alone = g.program(mse(g, linear(g, g.input((4, 6)), 8), g.input((4, 8))), "sgd")
    assert with_whole_masks(alone, alike=True) is alone
    once = with_whole_masks(program(), alike=True)
    assert with_whole_masks(once, alike=True) is once
