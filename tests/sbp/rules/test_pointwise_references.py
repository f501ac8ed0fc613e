"""NumPy references of activations, unary functions, comparisons and selections: whole steps of
small graphs equal the engine's kernels, and the index names tell apart how operands broadcast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.program import Program
from autoddl.sbp.rules import activation, comparison, registry, select, unary
from autoddl.sbp.rules.pointwise import broadcast_dims
from autoddl.sbp.rules.registry import find
from experiments.rule_cases import case

WIDE, NEAR, ABOVE, POSITIVE = (-4.0, 4.0), (-0.9, 0.9), (1.2, 3.0), (0.5, 2.0)


def _functions() -> dict[str, tuple[Callable[..., Any], tuple[float, float]]]:
    """Return functions of one tensor and the range of its values."""
    import oneflow as flow
    from oneflow import nn

    f, raw = nn.functional, flow._C
    modules = (
        "SiLU ELU SELU Softplus Softsign Hardsigmoid Hardswish Hardtanh Hardshrink Softshrink "
        "LeakyReLU LogSigmoid"
    )
    table: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
        name: (getattr(nn, name)(), WIDE) for name in modules.split()
    }
    domains = {
        WIDE: "sin cos atan sinh cosh asinh erf erfc expm1 floor ceil round sign trunc logical_not",
        NEAR: "tan asin acos atanh",
        ABOVE: "acosh",
        POSITIVE: "log1p log2 log10 reciprocal",
    }
    for bounds, names in domains.items():
        table |= {name: (getattr(flow, name), bounds) for name in names.split()}
    return table | {
        "fast_gelu": (lambda x: f.gelu(x, approximate="tanh"), WIDE),
        "quick_gelu": (raw.quick_gelu, WIDE),
        "softplus_steep": (nn.Softplus(beta=2.0, threshold=3.0), WIDE),
        "elu_low": (nn.ELU(alpha=0.5), WIDE),
        "relu6": (nn.ReLU6(), (-2.0, 8.0)),
        "threshold": (nn.Threshold(0.5, 0.1), WIDE),
        "rint": (raw.rint, WIDE),
        "reciprocal_no_nan": (lambda x: raw.reciprocal_no_nan(flow.relu(x)), WIDE),
        "reverse_pow": (lambda x: 2**x, NEAR),
        "fmod": (lambda x: flow.fmod(x, 0.3), WIDE),
        "floordiv": (lambda x: x // 0.3, WIDE),
        "clamp": (lambda x: flow.clamp(x, -0.2, 0.8), WIDE),
        "clamp_min": (lambda x: flow.clamp(x, min=0.2), WIDE),
        "clamp_max": (lambda x: flow.clamp(x, max=0.8), WIDE),
        "equal": (lambda x: flow.floor(x) == 1, WIDE),
        "not_equal": (lambda x: flow.floor(x) != 1, WIDE),
        "less": (lambda x: flow.floor(x) < 1, WIDE),
        "less_equal": (lambda x: flow.floor(x) <= 1, WIDE),
        "greater": (lambda x: flow.floor(x) > 1, WIDE),
        "greater_equal": (lambda x: flow.floor(x) >= 1, WIDE),
        "and": (lambda x: flow.logical_and(flow.floor(x), 1), WIDE),
        "or": (lambda x: flow.logical_or(flow.floor(x), 0), WIDE),
        "xor": (lambda x: flow.logical_xor(flow.floor(x), 1), WIDE),
        "scalar_x": (lambda x: flow.where(x > 0.5, 1.5, x), WIDE),
        "scalar_y": (lambda x: flow.where(x > 0.5, x, 1.5), WIDE),
        "scalar_xy": (lambda x: flow.where(x > 0.5, 2.0, 1.5), WIDE),
        "masked_fill": (lambda x: x.masked_fill(x > 0.5, 3.0), WIDE),
        "tril": (lambda x: flow.tril(x, 1), WIDE),
        "triu": (lambda x: flow.triu(x, -1), WIDE),
        "constant": (lambda x: x + flow.full((8,), 2.0), WIDE),
        "arange": (lambda x: x + flow.arange(3, 19, 2), WIDE),
    }


def _of_floors(compare: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: compare(x.floor(), y.floor())


def _pairs() -> dict[str, Callable[..., Any]]:
    """Return functions of two positive tensors."""
    import oneflow as flow

    binary = "maximum minimum pow fmod atan2 floor_divide"
    compared = "eq ne lt le gt ge logical_and logical_or logical_xor"
    table: dict[str, Callable[..., Any]] = {name: getattr(flow, name) for name in binary.split()}
    for name in compared.split():
        table[name] = _of_floors(getattr(flow, name))
    table["where"] = lambda x, y: flow.where(x > y, x, y)
    return table


def step(
    function: Callable[..., Any], values: tuple[np.ndarray, ...]
) -> tuple[Program, np.ndarray, list[np.ndarray], np.ndarray]:
    """Return the captured step, and the engine's result and gradients; the last is dy."""
    import oneflow as flow
    from oneflow import nn

    import autoddl
    from experiments.models.training import OPTIMIZERS

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i, value in enumerate(values):
                setattr(self, f"p{i}", nn.Parameter(flow.tensor(value)))

        def forward(self, dy: Any) -> tuple[Any, Any]:
            tensors = [getattr(self, f"p{i}") for i in range(len(values))]
            y = function(*tensors)
            y = y.to(flow.float32)
            return y, (y * dy).sum() + sum((p * p).sum() for p in tensors)

    class Step(nn.Graph):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(OPTIMIZERS["plain_sgd"](model.parameters()))

        def build(self, dy: Any) -> Any:
            y, loss = self.model(dy)
            loss.backward()
            return y

    model = Model()
    shape = values[0].shape  # the larger one, to which others are broadcast
    dy = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    program = autoddl.capture(Step(model), flow.tensor(dy))
    y, loss = model(flow.tensor(dy))
    loss.backward()
    return program, y.numpy(), [p.grad.numpy() for p in model.parameters()], dy


def proven(program: Program) -> Program:
    """Leave out ops without a rule, and those that read what they make."""
    lost: set[str] = set()
    kept = []
    for op in program.ops:
        if find(op.type) is None or lost & {tensor for _, tensor in op.inputs}:
            lost |= {tensor for _, tensor in op.outputs}
        else:
            kept.append(op)
    return replace(program, ops=tuple(kept))


def compare(function: Callable[..., Any], *values: np.ndarray) -> set[str]:
    """Check result and gradients of a step against the engine; return the op types that ran."""
    program, y, gradients, dy = step(function, values)
    parameters = sorted(program.parameters, key=lambda p: p.tensor)
    known = {p.tensor: v.astype(float) for p, v in zip(parameters, values, strict=True)}
    program = proven(program)
    known = run_program(program, {**known, program.inputs[0]: dy.astype(float)})
    np.testing.assert_allclose(known[program.outputs[0]], y, rtol=1e-4, atol=1e-5)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.gradient not in known:  # made by a backward op without a rule
            continue
        np.testing.assert_allclose(known[parameter.gradient], gradient, rtol=1e-4, atol=1e-5)
    return {op.type for op in program.ops if op.phase != "optimizer"}


def draw(bounds: tuple[float, float], *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(*bounds, shape).astype(np.float32)


@pytest.mark.oneflow
@pytest.mark.filterwarnings("ignore:.*not registered into a nn.Graph")
def test_references_equal_the_engines_kernels() -> None:
    """Every op type of the tables runs at least once, with its gradient."""
    import oneflow as flow

    faults, types = {}, set()
    runs = [(name, f, (draw(bounds, 4, 8),)) for name, (f, bounds) in _functions().items()]
    for name, f in _pairs().items():
        for shape in ((4, 8), (8,), (4, 1)):
            if shape == (4, 8) or name not in ("atan2", "floor_divide"):
                runs.append((name, f, (draw(POSITIVE, 4, 8), draw(POSITIVE, *shape, seed=1))))
    for slopes in (8, 1):
        runs.append(("prelu", flow.nn.functional.prelu, (draw(WIDE, 4, 8, 3), draw(NEAR, slopes))))
    for name, f, values in runs:
        try:
            types |= compare(f, *values)
        except AssertionError as error:
            faults[name, values[-1].shape] = str(error)
    assert faults == {}
    assert OURS - types == set()


# The types of these modules: their tables, and what is registered one by one.
OURS = {
    *activation._FROM_IN, *activation._GRADIENTS, "prelu", "prelu_grad",
    *unary._FUNCTIONS, *unary._GRADIENTS,
    *comparison._FUNCTIONS, *comparison._GRADIENTS,
    *(f"broadcast_{name}" for name in comparison._COMPARISONS),
    *(f"scalar_logical_{n.removeprefix('logical_')}" for n in comparison._COMPARISONS),
    *select._SELECTIONS, "tril", "triu", "constant", "arange",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x_0: 4 8, y_0: 4 8 -> z_0: 4 8", "d0 d1, d0 d1 -> d0 d1"),
        ("x_0: 4 8 12, y_0: 8 12 -> z_0: 4 8 12", "m0 d1 d2, d1 d2 -> m0 d1 d2"),
        ("x_0: 4 1, y_0: 4 8 -> z_0: 4 8", "d0 ., d0 r1 -> d0 r1"),
        ("x_0: 4 8 12, y_0: 1 12 -> z_0: 4 8 12", "m0 s1 d2, . d2 -> m0 s1 d2"),
        ("x_0: 1 8, y_0: 1 8 -> z_0: 1 8", "d0 d1, d0 d1 -> d0 d1"),
    ],
)
def test_index_names_tell_how_operands_broadcast(text: str, names: str) -> None:
    found = broadcast_dims(case("broadcast_less", text)).values()
    x, y, z = (" ".join(i or "." for i in dims) for dims in found)
    assert f"{x}, {y} -> {z}" == names


@pytest.mark.parametrize(
    ("op_type", "text", "attrs", "passes"),
    [
        ("masked_fill", "mask_0: 8, x_0: 4 8 -> out_0: 4 8", {"has_int_operand": True}, True),
        (
            "masked_fill", "mask_0: 8, x_0: 4 8 -> out_0: 4 8",
            {"has_int_operand": True, "int_operand": 1}, False,
        ),
        ("where", "condition_0: 8, x_0: 4 8, y_0: 8 -> out_0: 4 8", {}, True),
        ("tril", "in_0: 4 8 -> out_0: 4 8", {"is_floating_fill_value": False}, True),
        (
            "tril", "in_0: 4 8 -> out_0: 4 8",
            {"is_floating_fill_value": True, "floating_fill_value": -1.0}, False,
        ),
    ],
)  # fmt: skip
def test_partial_sums_pass_where_nothing_constant_is_mixed_in(
    op_type: str, text: str, attrs: dict[str, Any], passes: bool
) -> None:
    blank = {
        "has_bool_operand": False, "has_int_operand": False, "has_float_operand": False,
        "int_operand": 0, "integer_fill_value": 0,
    }  # fmt: skip
    found = registry.labelled(case(op_type, text, **blank | attrs))
    assert any(label.startswith("P ") for label in found) == passes
