"""Programs of one micro-batch: beside programs made at that size, the engine's traces, and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Parameter, Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.rules.registry import LocalOp, OpView, find
from experiments.lib.oneflow_problems import build
from tests.search.objects import nodes_of
from tests.support.clusters import cluster
from tests.support.programs import (
    Builder,
    activation,
    add,
    linear,
    mlp,
    mse,
    reshape,
    scaled,
    start_backward,
    transformer,
    transpose,
)
from tests.support.zoo import experts, separate_attention

Array = npt.NDArray[Any]

PROGRAMS: dict[str, Callable[[int], Program]] = {
    "mlp": lambda batch: mlp(batch),
    "mlp without bias": lambda batch: mlp(batch, bias=False, optimizer="sgd", act="relu"),
    "transformer": lambda batch: transformer(layers=2, batch=batch),
    "attention": lambda batch: separate_attention(batch),
    "experts": lambda batch: experts(batch, 4, 2, 16, 64),
}


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_the_program_made_at_that_size(name: str, count: int) -> None:
    assert micro_batch(PROGRAMS[name](12), count) == PROGRAMS[name](12 // count)


def test_one_micro_batch_is_the_program_itself() -> None:
    program = mlp(7)
    assert micro_batch(program, 1) is program


@pytest.mark.parametrize("name", PROGRAMS)
def test_can_be_planned(name: str) -> None:
    problem = build(micro_batch(PROGRAMS[name](8), 2), Mesh.parse("2x2"), cluster())
    assert all(node.choices for node in nodes_of(problem))


def test_mean_of_gradients_is_that_of_the_whole_batch() -> None:
    program = mlp(12, (5, 7, 3), act="relu")
    rng = np.random.default_rng(3)
    values = {
        t.name: rng.normal(size=t.shape) for t in program.tensors if t.name in _given(program)
    }
    whole = _run(program, values)
    parts = []
    for k in range(3):
        part = {n: v[4 * k : 4 * k + 4] if n in program.inputs else v for n, v in values.items()}
        parts.append(_run(micro_batch(program, 3), part))
    for parameter in program.parameters:
        name = str(parameter.gradient)
        mean = np.mean([part[name] for part in parts], axis=0)
        np.testing.assert_allclose(mean, whole[name], rtol=1e-9, atol=1e-12)
        assert not np.allclose(parts[0][name], whole[name])


def _given(program: Program) -> set[str]:
    return {*program.inputs, *(p.tensor for p in program.parameters)}


def _run(program: Program, values: dict[str, Array]) -> dict[str, Array]:
    """Return all tensors of a training step, by the NumPy references of the rules."""
    values = dict(values)
    for op in program.ops:
        rule = find(op.type)
        if op.phase == "optimizer":
            continue
        assert rule is not None
        shapes = program.shapes(op)
        local = LocalOp(
            OpView.of(op, shapes),
            {operand: values[name] for operand, name in op.inputs},
            {operand: (0,) * len(shape) for operand, shape in shapes.items()},
        )
        made = rule.reference(local)
        for operand, name in op.outputs:
            assert made[operand].shape == program.tensor[name].shape
            values[name] = made[operand]
    return values


def time_major(batch: int, length: int = 6, width: int = 4) -> Program:
    """Return a step with the batch in the second dim, which a layer sees merged with the first."""
    g = Builder()
    x, target = g.input((batch, length, width)), g.input((batch, length, width))
    with g.module("model"):
        y = reshape(g, transpose(g, x, (1, 0, 2)), (length * batch, width))
        y = activation(g, linear(g, y, width), "relu")
        y = transpose(g, reshape(g, y, (length, batch, width)), (1, 0, 2))
        y = linear(g, reshape(g, y, (batch, length * width)), length * width, bias=False)
        y = reshape(g, y, (batch, length, width))
    return g.program(mse(g, y, target), "sgd")


def test_batches_behind_another_dim() -> None:
    assert micro_batch(time_major(8), 4) == time_major(2)


# --- tensors that no input leads to ----------------------------------------------------------


def masked(batch: int, *, shared: bool = False) -> Program:
    """Return a linear layer whose results are multiplied by (1 - constant) of the batch's size."""
    g = Builder()
    x, target = g.input((batch, 6)), g.input((batch, 4))
    with g.module("model"):
        y = linear(g, x, 4, bias=False)
        ones = g.op("constant", "-> out_0", [], (batch, 4), shape=(batch, 4), **constant(1.0))
        mask = g.op("scalar_add", "in_0 -> out_0", [ones], (batch, 4), float_operand=-1.0)
        if shared:  # read before a cut tensor shows that it belongs to the batch
            g.op("relu", "x_0 -> y_0", [ones], (batch, 4))
        z = g.op("broadcast_mul", "x_0 y_0 -> z_0", [y, mask], (batch, 4))
        g.back(z, lambda dz: g.give(y, lambda: dz))
    return g.program(mse(g, z, target), "sgd")


def constant(value: float) -> dict[str, Any]:
    return {"is_floating_value": True, "floating_value": value, "integer_value": 0}


@pytest.mark.parametrize("shared", [False, True])
def test_masks_follow_the_batch(shared: bool) -> None:
    assert micro_batch(masked(8, shared=shared), 4) == masked(2, shared=shared)


def with_token(batch: int, *, source: str = "expand") -> Program:
    """Return rows to which a learnt one is added, which is repeated for every sample first."""
    g = Builder()
    x, target = g.input((batch, 3, 4)), g.input((batch, 3, 4))
    with g.module("model"):
        token = g.parameter("token", (1, 1, 4))
        large = (batch, 3, 4)
        y = g.op("expand", "in_0 -> out_0", [token], large, expand_shape=large)
        g.back(
            y,
            lambda dy: g.give(
                token,
                lambda: g.op(
                    "reduce_sum_like", "x_0 like_0 -> y_0", [dy, token], (1, 1, 4), axis=(0, 1)
                ),
            ),
        )
        z = g.op("add_n", "in_0 in_1 -> out_0", [x, y], large)
        g.back(z, lambda dz: g.give(y, lambda: dz))
    return g.program(mse(g, z, target), "sgd")


def test_repeated_parameters_follow_the_batch() -> None:
    assert micro_batch(with_token(8), 2) == with_token(4)


def numbered(batch: int) -> Program:
    """Return a loss of rows plus (-3, -1, 1, …)."""
    g = Builder()
    x, target = g.input((batch,)), g.input((batch,))
    numbers = g.op(
        "arange", "-> out_0", [], (batch,),
        integer_start=0, integer_delta=0, integer_limit=0,
        float_start=-3.0, float_delta=2.0, float_limit=-3.0 + 2.0 * batch,
    )  # fmt: skip
    x = g.op("add_n", "in_0 in_1 -> out_0", [x, numbers], (batch,))
    return g.program(mse(g, add(g, x, g.parameter("bias", (1,))), target), "sgd")


def test_counts_and_their_limits_follow_the_batch() -> None:
    assert micro_batch(numbered(12), 3) == numbered(4)


def narrowed(batch: int) -> Program:
    g = Builder()
    x, target = g.input((batch, 8)), g.input((batch, 8))
    x = linear(g, x, 8)
    y = g.op("narrow", "in_0 -> out_0", [x], (batch, 8), dim=0, start=0, length=batch)
    g.back(y, lambda dy: g.give(x, lambda: dy))
    return g.program(mse(g, y, target), "sgd")


def test_parts_that_are_the_whole_batch_follow_it() -> None:
    assert micro_batch(narrowed(8), 4) == narrowed(2)


def random(batch: int) -> Program:
    """Return dropout of a layer to which random numbers were added, under a mean that is one op."""
    g = Builder()
    x, target = g.input((batch, 4)), g.input((batch, 4))
    with g.module("model"):
        y = linear(g, x, 4, bias=False)
        noise = g.op("normal", "-> out_0", [], (batch, 4), shape=(batch, 4), mean=0.0, std=1.0)
        z = g.op("add_n", "in_0 in_1 -> out_0", [y, noise], (batch, 4))
        g.back(z, lambda dz: g.give(y, lambda: dz))
        out, mask = g.op("dropout", "in_0 -> out_0 mask_0", [z], (batch, 4), (batch, 4), rate=0.1)
        g.back(
            out,
            lambda d: g.give(
                z,
                lambda: g.op(
                    "dropout_grad", "dy_0 mask_0 -> dx_0", [d, mask], (batch, 4), scale=1 / 0.9
                ),
            ),
        )
    mean = "binary_cross_entropy_with_logits_reduce_mean"
    loss = g.op(mean, "input_0 target_0 -> out_0", [out, target], ())

    def step(one: str) -> None:
        operands = "dy_0 input_0 target_0 -> dx_0"
        g.give(out, lambda: g.op(f"{mean}_grad", operands, [one, out, target], (batch, 4)))

    g.back(loss, step)
    start_backward(g, loss)
    return g.program(loss, "sgd")


def test_what_devices_can_not_share_micro_batches_can() -> None:
    assert micro_batch(random(8), 2) == random(4)


# --- numbers that are no sizes of the batch --------------------------------------------------


def forward_only(g: Builder, output: str) -> Program:
    return Program(
        tuple(g.ops), tuple(g.tensors.values()), tuple(g.inputs), (output,),
        tuple(Parameter(name) for name in g.parameters), None,
    )  # fmt: skip


def test_other_numbers_stay_where_they_equal_the_batch() -> None:
    g = Builder()
    y = transpose(g, reshape(g, g.input((8, 8, 8)), (8, 8, 8)), (1, 0, 2))
    y = scaled(g, linear(g, reshape(g, y, (8, 8, 8)), 8, bias=False), 1 / 8)
    part = micro_batch(forward_only(g, y), 4)
    ops = {op.type: op for op in part.ops}
    assert ops["transpose"].attr["perm"] == (1, 0, 2)
    reshapes = [op.attr["shape"] for op in part.ops if op.type == "reshape"]
    assert reshapes == [(2, 8, 8), (8, 2, 8)]
    assert ops["scalar_mul"].attr["float_operand"] == 1 / 8
    assert part.tensor[g.parameters[0]].shape == (8, 8)
    assert part.tensor[y].shape == (8, 2, 8)


# --- errors ----------------------------------------------------------------------------------


# --- batch norm ------------------------------------------------------------------------------


def test_batch_norm_takes_the_statistics_of_each_micro_batch() -> None:
    def normed(batch: int) -> Program:
        g = Builder()
        shape = (batch, 3, 2, 2)
        names = ("beta", "gamma", "moving_mean", "moving_variance")
        held = [g.parameter(name, (3,)) for name in names]
        operands = "x_0 beta_0 gamma_0 moving_mean_0 moving_variance_0 -> y_0 mean_0 inv_variance_0"
        y, *_ = g.op(
            "normalization", operands, [g.input(shape), *held], shape, (3,), (3,),
            axis=1, training=True, epsilon=1e-5, momentum=0.9,
        )  # fmt: skip
        return forward_only(g, y)

    assert micro_batch(normed(8), 4) == normed(2)
