"""Whether a batch trains as its halves do: held against what NumPy makes of both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.program import Parameter, Program
from autoddl.sbp.rewrites.batch_mean import check_mean
from autoddl.sbp.rewrites.micro_batch import micro_batch
from tests.support.programs import Builder, linear, mlp, mse, scaled, transformer


def total(g: Builder, x: str, *, keep: int = 0) -> str:
    """Return the sum over all dims but the last `keep`."""
    shape = g.shape(x)
    axes = tuple(range(len(shape) - keep))
    rest = shape[len(shape) - keep :]
    made: str = g.op(
        "reduce_sum", "input_tensor_0 -> output_tensor_0", [x], rest, axis=axes, keepdims=False
    )
    return made


def forward(loss_of: Callable[[Builder, str], str], batch: int = 8) -> Program:
    """Return the forward pass of a linear layer, and a loss."""
    g = Builder()
    x = g.input((batch, 6))
    with g.module("model"):
        y = linear(g, x, 4, bias=False)
    return untrained(g, loss_of(g, y))


def untrained(g: Builder, loss: str) -> Program:
    """Return the forward pass that has been built, without a backward pass."""
    parameters = tuple(map(Parameter, g.parameters))
    tensors = tuple(g.tensors.values())
    return Program(tuple(g.ops), tensors, tuple(g.inputs), (loss,), parameters, loss)


def mean_of_squares(g: Builder, y: str) -> str:
    square = g.op("square", "x_0 -> y_0", [y], g.shape(y))
    return scaled(g, total(g, square), 1 / 32)


def sum_of_squares(g: Builder, y: str) -> str:
    return total(g, g.op("square", "x_0 -> y_0", [y], g.shape(y)))


def square_of_means(g: Builder, y: str) -> str:
    means = scaled(g, total(g, y, keep=1), 1 / 8)
    square = g.op("square", "x_0 -> y_0", [means], (4,))
    return scaled(g, total(g, square), 1 / 4)


def weighted(g: Builder, y: str) -> str:
    """Return a sum of squares over the sum of weights, which are as many for each half."""
    square = g.op("square", "x_0 -> y_0", [y], g.shape(y))
    ones = g.op("ones_like", "like_0 -> out_0", [y], g.shape(y))
    made: str = g.op("broadcast_div", "x_0 y_0 -> z_0", [total(g, square), total(g, ones)], ())
    return made


LOSSES = {
    "mean of squares": (mean_of_squares, ""),
    "weighted": (weighted, ""),
    "sum of squares": (sum_of_squares, "no mean over the samples"),
    "square of means": (square_of_means, r"square-\d+ \(square\) couples the samples"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_refused_is_not_the_mean_of_the_halves(name: str) -> None:
    made, words = LOSSES[name]
    whole = forward(made)
    half = micro_batch(whole, 2)
    rng = np.random.default_rng(1)
    values = {t: rng.normal(size=whole.tensor[t].shape) for t in (*whole.inputs, "model.weight")}
    loss = str(whole.loss)
    parts = [run_program(half, {**values, "input.0.0": part})[loss]
             for part in np.split(values["input.0.0"], 2)]  # fmt: skip
    equal = np.allclose(np.mean(parts), run_program(whole, values)[loss])
    assert equal == (not words)
    if words:
        with pytest.raises(AutoDDLError, match=words):
            check_mean(whole, half)
    else:
        check_mean(whole, half)


@pytest.mark.parametrize("program", [mlp(8), transformer(layers=1, batch=4)], ids=["mlp", "gpt"])
def test_usual_losses_are_means(program: Program) -> None:
    check_mean(program, micro_batch(program, 2))


def test_statistics_that_are_kept_couple_samples() -> None:
    g = Builder()
    x, target = g.input((8, 6)), g.input((8, 6))
    held = [g.parameter(leaf, (6,)) for leaf in ("mean", "variance", "gamma", "beta")]
    names = "x_0 moving_mean_0 moving_variance_0 gamma_0 beta_0 -> y_0 mean_0 inv_variance_0"
    y, *_ = g.op(
        "normalization", names, [x, *held], (8, 6), (6,), (6,), axis=1, epsilon=1e-5, training=True,
        momentum=0.9,
    )  # fmt: skip
    whole = untrained(g, mse(g, y, target))
    with pytest.raises(AutoDDLError, match=r"\(normalization\) couples the samples of a batch"):
        check_mean(whole, micro_batch(whole, 2))
