"""BatchNorm in parts: the numbers of the op that sees the whole batch, by the rules' references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.program import Parameter, Program
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import PREFIX, is_synchronised, synchronised
from autoddl.sbp.rewrites.in_parts.whole_batchnorm import in_one_op
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.state import NdSbp
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from tests.support.clusters import cluster
from tests.support.programs import Builder, mse

Array = npt.NDArray[Any]
EPSILON, MOMENTUM = 1e-5, 0.9
SHAPES = ((4, 3, 5, 2), (6, 3), (2, 3, 4), (3, 2, 2, 3, 2))


def normal(g: Builder, x: str, buffers: list[str], **more: Any) -> str:
    """Add a BatchNorm with its backward pass."""
    shape = g.shape(x)
    beta, gamma = (g.parameter(leaf, shape[1:2]) for leaf in ("bias", "weight"))
    moving = [f"{g.scope}.running_{what}" for what in ("mean", "var")]
    for name in moving:
        g._tensor(name, shape[1:2], "float32", "buffer")
    buffers += moving
    attrs = {"axis": 1, "epsilon": EPSILON, **more}
    inverse, mean, y = g.op(
        "normalization", "beta_0 gamma_0 moving_mean_0 moving_variance_0 x_0 -> "
        "inv_variance_0 mean_0 y_0", [beta, gamma, *moving, x], shape[1:2], shape[1:2], shape,
        **{"momentum": MOMENTUM, "training": True, **attrs},
    )  # fmt: skip

    def backward(dy: str) -> None:
        beta_diff, dx, gamma_diff = g.op(
            "normalization_grad", "dy_0 gamma_0 inv_variance_0 mean_0 x_0 -> beta_diff_0 dx_0 "
            "gamma_diff_0", [dy, gamma, inverse, mean, x], shape[1:2], shape, shape[1:2], axis=1,
            epsilon=EPSILON,
        )  # fmt: skip
        g.give(beta, lambda: beta_diff)
        g.give(gamma, lambda: gamma_diff)
        g.give(x, lambda: dx)

    return g.back(y, backward)


def program(shape: tuple[int, ...], **more: Any) -> Program:
    """Return that of two BatchNorms, one behind the other."""
    g, buffers = Builder(), list[str]()
    h = g.input(shape)
    for layer in range(2):
        with g.module(f"layers.{layer}"):
            h = normal(g, h, buffers, **more)
    found = g.program(mse(g, h, g.input(shape)), "momentum")
    return replace(found, parameters=(*found.parameters, *map(Parameter, buffers)))


def drawn(whole: Program, dtype: str, at: float = 0.0) -> dict[str, Array]:
    """Return values of inputs and parameters, those of inputs around `at`."""
    rng = np.random.default_rng(3)
    names = [*whole.inputs, *(p.tensor for p in whole.parameters)]
    found = {name: rng.normal(size=whole.tensor[name].shape) for name in names}
    found[whole.inputs[0]] += at
    return {
        name: (abs(value) + 1 if name.endswith("_var") else value).astype(np.float32).astype(dtype)
        for name, value in found.items()
    }


def told(whole: Program, values: dict[str, Array]) -> dict[str, Array]:
    """Return the loss, the gradients of parameters, and the new running statistics."""
    found = run_program(whole, values)
    names = {p.tensor: p.gradient or p.tensor for p in whole.parameters}
    return {"loss": found[str(whole.loss)]} | {name: found[t] for name, t in names.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_all_numbers_are_those_of_the_whole_batch(shape: tuple[int, ...]) -> None:
    whole = program(shape)
    parts = synchronised(whole)
    assert is_synchronised(parts) and not is_synchronised(whole)
    values = drawn(whole, "float64", 3.0)
    expected, found = told(whole, values), told(parts, values)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-11, err_msg=name)
    moved = [
        abs(found[p.tensor] - values[p.tensor]).max() for p in whole.parameters if not p.update
    ]
    assert min(moved) > 1e-3


def test_values_far_from_zero_keep_their_digits() -> None:
    """With squares minus the square of the mean nothing would be left: 1e6 has 7 digits in float32."""
    whole = program((8, 3, 6, 6))
    exact = told(whole, drawn(whole, "float64", 1e3))
    values = drawn(whole, "float32", 1e3)
    alone, parts = told(whole, values), told(synchronised(whole), values)
    for name in exact:
        off, least = (abs(found[name] - exact[name]).max() for found in (parts, alone))
        assert off <= 10 * least + 1e-4 * abs(exact[name]).max(), name
    x = values[whole.inputs[0]]
    naive = (x**2).mean(axis=(0, 2, 3)) - x.mean(axis=(0, 2, 3)) ** 2
    assert abs(naive - exact["layers.0.running_var"]).max() > 1e-2


def test_statistics_of_halves_are_made_in_float32() -> None:
    """Of values around 30 halves have steps of 1/64: their variance has to be that of the halves."""
    whole = program((8, 3, 6, 6))
    halves = replace(
        whole,
        tensors=tuple(
            replace(t, dtype="float16") if len(t.shape) > 1 else t for t in whole.tensors
        ),
    )
    parts = synchronised(halves)
    assert is_synchronised(parts)
    kinds = {parts.tensor[t].dtype for op in parts.ops if PREFIX in op.name for _, t in op.outputs}
    assert kinds == {"float16", "float32"}  # the two passes over an activation, and all else
    for op in parts.ops:
        if op.type in ("reduce_sum", "var") and PREFIX in op.name:
            assert {parts.tensor[tensor].dtype for _, tensor in op.operands} == {"float32"}
    values = drawn(whole, "float32", 30.0)
    for name in whole.inputs:
        values[name] = values[name].astype(np.float16).astype(np.float32)
    exact = told(whole, {name: value.astype(np.float64) for name, value in values.items()})
    found = told(parts, values)
    for name in ("layers.0.running_var", "layers.0.running_mean"):
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-5, err_msg=name)
        assert found[name].dtype == np.float32
    np.testing.assert_allclose(found["loss"], exact["loss"], rtol=2e-2)


def test_the_batch_can_be_cut_exactly() -> None:
    """The op itself has all of the batch, parts of it any; sums alone go over devices."""
    whole = program((4, 3, 5, 2))
    for one, may in ((whole, False), (synchronised(whole), True)):
        ops = [op for op in one.ops if op.phase != "optimizer" and op.type != "sgd_update"]
        normal = [op for op in ops if op.type.startswith("normalization")]
        assert len(normal) == (6 if may else 4)  # the input's gradient is not asked for
        for op in normal:
            every = nd_signatures(OpView.of(op, one.shapes(op)), (2,))
            assert may == any(found["x_0"] == NdSbp.parse("S0") for found in every)


def test_what_has_no_parts_is_left_alone() -> None:
    evaluated = program((4, 3, 2), training=False)
    assert synchronised(evaluated) is evaluated
    single = program((1, 3, 5, 2))
    assert synchronised(single) is single
    once = synchronised(program((4, 3, 2)))
    assert synchronised(once) is once
    names = [op.name for op in once.ops]
    assert len(set(names)) == len(names) and any(name.startswith(PREFIX) for name in names)


def test_one_op_again_is_the_program_that_was_parted() -> None:
    whole, mesh = program((4, 3, 4, 2)), Mesh.parse("2x2")
    network = build(synchronised(whole), mesh, cluster())
    for seed in range(3):
        found = Assigned(network, random_assignment(network, seed)).layout
        layout = in_one_op(found)
        assert layout.program.ops == whole.ops
        assert set(layout.program.tensors) == set(whole.tensors)
        for op in whole.ops:
            assert layout.signatures[op.name].keys() == {name for name, _ in op.operands}
            assert (
                op.type != "normalization"
                or layout.signatures[op.name]["y_0"] == (found.signatures[op.name]["y_0"])
            )
        readers = {reader for item in layout.redistributions for reader in item.readers}
        assert readers <= {(op.name, o) for op in whole.ops for o, _ in op.inputs} | {
            ("output", "")
        }
        assert in_one_op(layout) is layout
