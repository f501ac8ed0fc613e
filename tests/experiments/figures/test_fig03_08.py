"""AutoDDL's figures 3 and 8: the published process grids, found by search; costs by closed form."""

from __future__ import annotations

import pytest

from autoddl.engine.engines import ONEFLOW
from autoddl.sbp.program import Program
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate, ilp
from experiments.figures import fig03_08
from experiments.figures.fig03_08 import Grid, Pairs
from tests.support.programs import Builder, activation, linear, mlp, mse, part, reshape

# Elements beside the closed form: the loss is a scalar that all devices add up.
ROUNDING = 1e-5


def vgg(devices: int) -> Program:
    """The dense layers behind one that makes their input, which has a gradient therefore."""
    sizes = (1, *fig03_08.VGG_WIDTHS)
    return mlp(fig03_08.VGG_BATCH * devices, sizes, optimizer="sgd", act="relu", bias=False)


def attention(tokens: int = 256 * 1024, width: int = 8192, heads: int = 64) -> Program:
    """The two projections of an attention layer; between them a stand-in works head by head."""
    g = Builder()
    x, target = g.input((tokens, 1)), g.input((tokens, width))
    for name, features in (("make", width), ("qkv", 3 * width)):
        with g.module(name):
            x = linear(g, x, features, bias=False)
    depth = width // heads
    x = reshape(g, activation(g, x, "gelu"), (tokens, heads, 3 * depth))
    x = reshape(g, part(g, x, 0, depth), (tokens, width))
    with g.module("proj"):
        x = linear(g, x, width, bias=False)
    return g.program(mse(g, x, target), "sgd")


def published(pairs: Pairs) -> tuple[Grid, ...]:
    return tuple(Grid(1, b, s) for b, s in pairs)


@pytest.mark.parametrize("devices", fig03_08.VGG_MESHES)
def test_figure_8(devices: int) -> None:
    """On 64 devices another grid costs as much where weights may be replicated."""
    program, pairs = vgg(devices), fig03_08.VGG_GRIDS[devices]
    p = fig03_08.weights_cut(fig03_08.problem(program, fig03_08.VGG_MESHES[devices], None))
    found = ilp.search(p, SearchOptions(budget=120.0))
    assert fig03_08.grids(p, found.assignment) == published(pairs)
    assert found.cost_s == pytest.approx(
        fig03_08.closed_form(program, pairs, devices), rel=ROUNDING
    )
    assert found.gap == pytest.approx(0.0, abs=fig03_08.PROVEN)


def test_figure_8_is_the_best_where_weights_are_free_too() -> None:
    program, pairs = vgg(16), fig03_08.VGG_GRIDS[16]
    p = fig03_08.problem(program, fig03_08.VGG_MESHES[16], None)
    found = ilp.search(p, SearchOptions(budget=120.0))
    assert fig03_08.grids(p, found.assignment) == published(pairs)
    assert found.lower_bound_s == pytest.approx(
        fig03_08.closed_form(program, pairs, 16), rel=ROUNDING
    )


def test_figure_8_moves_what_was_derived_at_64_devices() -> None:
    """Elements per device of the first layer, forward, and of its gradients if it is replicated."""
    program = vgg(64)
    first, *_ = fig03_08.layers(program)

    def elements(b: int, s: int) -> float:
        return fig03_08.closed_form(program, ((b, s), (1, 1), (1, 1)), 64) / 2

    assert elements(1, 1) == 0
    assert elements(4, 16) == pytest.approx(1.09e6, rel=0.01)
    assert elements(1, 64) == pytest.approx(2.06e6, rel=0.01)
    assert elements(64, 1) == pytest.approx(12.6e6, rel=0.01)
    weights = program.tensor[first.parameter].elements
    assert 2 * weights * 63 / 64 == pytest.approx(202e6, rel=0.01)


def test_figure_3_takes_16_shards_and_megatron_30() -> None:
    program = attention()
    p = fig03_08.weights_cut(fig03_08.problem(program, fig03_08.ATTENTION_MESH, None))
    shard = 256 * 1024 * 8192 / 16
    both = 2 * shard  # what is moved forward is moved backward as well
    assert fig03_08.closed_form(program, fig03_08.ATTENTION_GRIDS, 16) == 16 * both
    assert fig03_08.closed_form(program, fig03_08.MEGATRON_GRIDS, 16) == 30 * both
    found = ilp.search(p, SearchOptions(budget=120.0))
    assert fig03_08.grids(p, found.assignment) == published(fig03_08.ATTENTION_GRIDS)
    assert found.cost_s / both == pytest.approx(16.0, rel=ROUNDING)
    assert found.gap == pytest.approx(0.0, abs=fig03_08.PROVEN)
    megatron = coordinate.search(
        fig03_08.held(p, fig03_08.MEGATRON_GRIDS), SearchOptions(budget=60.0)
    )
    assert megatron.cost_s / both == pytest.approx(30.0, rel=ROUNDING)


def test_what_oneflows_order_costs_depends_on_the_arrangement_of_the_axes() -> None:
    program, pairs = vgg(16), fig03_08.VGG_GRIDS[16]
    least = fig03_08.closed_form(program, pairs, 16)
    for mesh in ("4x2x2", "2x2x4"):
        p = fig03_08.weights_cut(fig03_08.problem(program, mesh, ONEFLOW))
        assert ilp.search(p, SearchOptions(budget=120.0)).cost_s > least * 1.01
