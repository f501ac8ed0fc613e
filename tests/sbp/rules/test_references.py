"""NumPy references of the rules against independent ones: SciPy, einsum, derivatives by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import signal, special

from autoddl.sbp.numpy_oracle.simulated_ops import run_op, sample_inputs
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.state import broadcast
from experiments.rule_cases import ADAM, MOMENTUM, UPDATE, case, case_id

Arrays = dict[str, np.ndarray]


def run(view: OpView, inputs: Arrays) -> Arrays:
    """Run the reference on one device."""
    whole = dict.fromkeys(view.inputs + view.outputs, broadcast(1))
    results = run_op(view, whole, (1,), {name: [array] for name, array in inputs.items()})
    return {name: array for name, (array,) in results.items()}


def drawn(view: OpView) -> tuple[Arrays, Arrays]:
    inputs = sample_inputs(view, np.random.default_rng(5))
    return inputs, run(view, inputs)


UNARY: dict[str, Any] = {
    "gelu": lambda x: x * special.ndtr(x),
    "sigmoid": special.expit,
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "rsqrt": lambda x: x**-0.5,
    "square": lambda x: x**2,
}


@pytest.mark.parametrize("op_type", UNARY)
def test_unary(op_type: str) -> None:
    ports = ("in_0", "out_0") if op_type == "gelu" else ("x_0", "y_0")
    inputs, results = drawn(case(op_type, f"{ports[0]}: 5 7 -> {ports[1]}: 5 7"))
    np.testing.assert_allclose(results[ports[1]], UNARY[op_type](inputs[ports[0]]))


@pytest.mark.parametrize(
    ("op_type", "shapes", "flags", "equation"),
    [
        ("matmul", "a_0: 3 5, b_0: 5 2 -> out_0: 3 2", "", "mk,kn->mn"),
        ("matmul", "a_0: 5 3, b_0: 2 5 -> out_0: 3 2", "ab", "km,nk->mn"),
        ("batch_matmul", "a_0: 4 3 2 5, b_0: 4 3 7 5 -> out_0: 4 3 2 7", "b", "xymk,xynk->xymn"),
        ("broadcast_matmul", "a_0: 4 3 5, b_0: 5 2 -> out_0: 4 3 2", "", "xmk,kn->xmn"),
        ("broadcast_matmul", "a_0: 3 5, b_0: 4 5 2 -> out_0: 4 3 2", "", "mk,xkn->xmn"),
        ("broadcast_matmul_grad_b", "a_0: 4 3 5, b_0: 4 3 2 -> out_0: 5 2", "", "xyn,xyk->nk"),
    ],
)
def test_products(op_type: str, shapes: str, flags: str, equation: str) -> None:
    attrs = {"transpose_a": "a" in flags, "transpose_b": "b" in flags, "alpha": 0.5}
    inputs, results = drawn(case(op_type, shapes, **attrs))
    expected = 0.5 * np.einsum(equation, inputs["a_0"], inputs["b_0"])
    np.testing.assert_allclose(results["out_0"], expected)


def test_softmaxes() -> None:
    inputs, results = drawn(case("softmax", "in_0: 3 5 -> out_0: 3 5"))
    np.testing.assert_allclose(results["out_0"], special.softmax(inputs["in_0"], axis=-1))
    inputs, results = drawn(case("log_softmax", "in_0: 3 5 -> prob_0: 3 5"))
    np.testing.assert_allclose(results["prob_0"], special.log_softmax(inputs["in_0"], axis=-1))


@pytest.mark.parametrize("unbiased", [False, True])
def test_variance_by_hand(unbiased: bool) -> None:
    view = case("var", "input_0: 2 3 -> output_0: 2 1", dim=(1,), unbiased=unbiased, keepdim=True)
    results = run(view, {"input_0": np.array([[1.0, 2, 3], [1, 1, 4]])})
    np.testing.assert_allclose(results["output_0"] * (2 if unbiased else 3), [[2.0], [6.0]])


# Reduction: over the rows and over the columns of [[-3, 1, 2], [0, -4, 3]], by hand.
REDUCTIONS = {
    "reduce_sum": ([0, -1], [-3, -3, 5]),
    "reduce_max": ([2, 3], [0, 1, 3]),
    "reduce_min": ([-3, -4], [-3, -4, 2]),
    "reduce_prod": ([-6, 0], [0, -4, 6]),
    "reduce_any": ([1, 1], [1, 1, 1]),
    "reduce_all": ([1, 0], [0, 1, 1]),
}


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions_by_hand(op_type: str) -> None:
    x = {"input_tensor_0": np.array([[-3.0, 1, 2], [0, -4, 3]])}
    rows, columns = REDUCTIONS[op_type]
    text = "input_tensor_0: 2 3 -> output_tensor_0: {}"
    results = run(case(op_type, text.format("2"), axis=(1,), keepdims=False), x)
    assert results["output_tensor_0"].tolist() == rows
    results = run(case(op_type, text.format("1 3"), axis=(-2,), keepdims=True), x)
    assert results["output_tensor_0"].tolist() == [columns]


def conv_attrs(stride: int, padding: int, dilation: int, groups: int) -> dict[str, Any]:
    return {
        "kernel_size": (3, 2), "strides": (stride,) * 2, "padding_before": (padding,) * 2,
        "dilation_rate": (dilation,) * 2, "groups": groups,
    }  # fmt: skip


def test_conv2d_against_scipy() -> None:
    view = case(
        "conv2d", "in_0: 2 4 6 7, weight_0: 6 2 3 2 -> out_0: 2 6 3 4", **conv_attrs(2, 1, 1, 2)
    )
    inputs, results = drawn(view)
    image = np.pad(inputs["in_0"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    for n in range(2):
        for k in range(6):
            channels = range(2) if k < 3 else range(2, 4)
            planes = [
                signal.correlate2d(image[n, c], inputs["weight_0"][k, c % 2], "valid")[::2, ::2]
                for c in channels
            ]
            np.testing.assert_allclose(results["out_0"][n, k], np.sum(planes, axis=0))


def test_dilated_conv2d_is_conv2d_with_a_sparse_kernel() -> None:
    shapes = "in_0: 2 2 7 8, weight_0: 3 2 {} -> out_0: 2 3 3 6"
    view = case("conv2d", shapes.format("3 2"), **conv_attrs(1, 0, 2, 1))
    inputs, results = drawn(view)
    sparse = np.zeros((3, 2, 5, 3))
    sparse[:, :, ::2, ::2] = inputs["weight_0"]
    plain = case("conv2d", shapes.format("5 3"), **conv_attrs(1, 0, 1, 1) | {"kernel_size": (5, 3)})
    again = run(plain, {"in_0": inputs["in_0"], "weight_0": sparse})
    np.testing.assert_allclose(results["out_0"], again["out_0"])


def test_max_pool_by_hand() -> None:
    x = np.array([[1.0, 2, 4], [8, 5, 4], [7, 6, 9]])[None, None]
    pool = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
    ceil = case("max_pool_2d", "x_0: 1 1 3 3 -> y_0: 1 1 2 2, indice_0: 1 1 2 2", **pool)
    results = run(ceil, {"x_0": x})
    assert results["y_0"].tolist() == [[[[8, 4], [7, 9]]]]
    assert results["indice_0"].tolist() == [[[[3, 2], [6, 8]]]]  # of two fours the first
    padded = run(OpView(**{**vars(ceil), "attr": {**pool, "padding": (1, 1)}}), {"x_0": -x})
    assert padded["y_0"].tolist() == [[[[-1, -2], [-7, -4]]]]
    assert padded["indice_0"].tolist() == [[[[0, 1], [6, 5]]]]


def test_adaptive_average_pool_by_hand() -> None:
    x = np.arange(5.0).reshape(1, 1, 1, 5)
    results = run(case("adaptive_avg_pool2d", "x_0: 1 1 1 5 -> y_0: 1 1 1 3"), {"x_0": x})
    np.testing.assert_allclose(results["y_0"].ravel(), [0.5, 2.0, 3.5])  # 0-1, 1-3, 3-4


def test_nll_by_hand() -> None:
    view = case(
        "nll", "input_0: 3 2, target_0: 3, weight_0: 2 -> output_0: 3, out_weight_0: 3",
        ignore_index=0,
    )  # fmt: skip
    inputs = {
        "input_0": np.array([[1.0, 2], [3, 4], [5, 6]]),
        "target_0": np.array([1, 0, 1]),
        "weight_0": np.array([10.0, 100.0]),
    }
    results = run(view, inputs)
    assert results["output_0"].tolist() == [-200, 0, -600]
    assert results["out_weight_0"].tolist() == [100, 0, 100]


# Gradient op; forward op; forward operand of each gradient input; what the gradient is of.
POOL = {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
POW = {"has_float_operand": True, "has_int_operand": False, "float_operand": 3.0}
SLICE = {"start": (1, 0), "stop": (3, 6), "step": (1, 2)}
CONV = conv_attrs(2, 1, 2, 2)
CONV_SHAPES = "in_0: 2 4 6 7, weight_0: 6 2 3 2 -> out_0: 2 6 2 4"


def unary_gradient(name: str, other: str = "x_0") -> tuple[OpView, OpView, dict[str, str], str]:
    source, result = ("in_0", "out_0") if name in ("gelu", "scalar_pow") else ("x_0", "y_0")
    forward = case(name, f"{source}: 4 6 -> {result}: 4 6", **POW)
    backward = case(f"{name}_grad", f"dy_0: 4 6, {other}: 4 6 -> dx_0: 4 6", **POW)
    return backward, forward, {"dy_0": "", other: result if other == "y_0" else source}, source


_FROM_X = ("gelu", "tanh", "exp", "log", "sqrt", "rsqrt", "square", "abs", "scalar_pow")
GRADIENTS = [
    *(unary_gradient(name) for name in _FROM_X),
    unary_gradient("relu", "y_0"),
    unary_gradient("sigmoid", "y_0"),
    (
        case("softmax_grad", "y_0: 4 6, dy_0: 4 6 -> dx_0: 4 6"),
        case("softmax", "in_0: 4 6 -> out_0: 4 6"),
        {"y_0": "out_0", "dy_0": ""}, "in_0",
    ),
    (
        case("log_softmax_grad", "prob_0: 4 6, dy_0: 4 6 -> dx_0: 4 6"),
        case("log_softmax", "in_0: 4 6 -> prob_0: 4 6"),
        {"prob_0": "prob_0", "dy_0": ""}, "in_0",
    ),
    (
        case("broadcast_div_grad", "dz_0: 3 4 6, z_0: 3 4 6, y_0: 4 1 -> dy_0: 4 1"),
        case("broadcast_div", "x_0: 3 4 6, y_0: 4 1 -> z_0: 3 4 6"),
        {"dz_0": "", "z_0": "z_0", "y_0": "y_0"}, "y_0",
    ),
    (
        case("slice_grad", "dy_0: 2 3 -> dx_0: 4 6", **SLICE),
        case("slice", "x_0: 4 6 -> y_0: 2 3", **SLICE), {"dy_0": ""}, "x_0",
    ),
    (
        case("reduce_sum_like", "x_0: 4 6 3, like_0: 6 1 -> y_0: 6 1", axis=(0, 2)),
        case("broadcast_like", "x_0: 6 1, like_0: 4 6 3 -> y_0: 4 6 3", broadcast_axes=(0, 2)),
        {"x_0": "", "like_0": "x_0"}, "x_0",
    ),
    (
        case("broadcast_like", "x_0: 6, like_0: 4 6 3 -> y_0: 4 6 3", broadcast_axes=(0, 2)),
        case(
            "reduce_sum", "input_tensor_0: 4 6 3 -> output_tensor_0: 6", axis=(0, 2),
            keepdims=False,
        ),
        {"x_0": "", "like_0": "input_tensor_0"}, "input_tensor_0",
    ),
    (
        case(
            "unsorted_segment_sum_like",
            "data_0: 3 2 4 6, segment_ids_0: 2 4, like_0: 3 5 6 -> out_0: 3 5 6", axis=1,
        ),
        case("gather", "in_0: 3 5 6, indices_0: 2 4 -> out_0: 3 2 4 6", axis=1),
        {"data_0": "", "segment_ids_0": "indices_0", "like_0": "in_0"}, "in_0",
    ),
    (
        case(
            "nll_grad", "out_grad_0: 4, input_0: 4 6, target_0: 4, weight_0: 6 -> in_grad_0: 4 6",
            ignore_index=2,
        ),
        case(
            "nll", "input_0: 4 6, target_0: 4, weight_0: 6 -> output_0: 4, out_weight_0: 4",
            ignore_index=2,
        ),
        {"out_grad_0": "", "input_0": "input_0", "target_0": "target_0", "weight_0": "weight_0"},
        "input_0",
    ),
    (
        case(
            "conv_data_grad", "dy_0: 2 6 2 4, filter_0: 6 2 3 2, x_like_0: 2 4 6 7 -> "
            "dx_0: 2 4 6 7", **CONV,
        ),
        case("conv2d", CONV_SHAPES, **CONV),
        {"dy_0": "", "filter_0": "weight_0", "x_like_0": "in_0"}, "in_0",
    ),
    (
        case(
            "conv_filter_grad", "dy_0: 2 6 2 4, x_0: 2 4 6 7 -> filter_diff_0: 6 2 3 2", **CONV
        ),
        case("conv2d", CONV_SHAPES, **CONV), {"dy_0": "", "x_0": "in_0"}, "weight_0",
    ),
    (
        case(
            "max_pool_2d_grad", "x_0: 2 3 5 6, indice_0: 2 3 3 3, dy_0: 2 3 3 3 -> "
            "dx_0: 2 3 5 6", **POOL,
        ),
        case("max_pool_2d", "x_0: 2 3 5 6 -> y_0: 2 3 3 3, indice_0: 2 3 3 3", **POOL),
        {"x_0": "x_0", "indice_0": "indice_0", "dy_0": ""}, "x_0",
    ),
    (
        case("adaptive_avg_pool2d_grad", "x_0: 2 3 5 7, dy_0: 2 3 2 3 -> dx_0: 2 3 5 7"),
        case("adaptive_avg_pool2d", "x_0: 2 3 5 7 -> y_0: 2 3 2 3"),
        {"x_0": "x_0", "dy_0": ""}, "x_0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("backward", "forward", "origin", "wanted"),
    GRADIENTS,
    ids=[f"{case_id(row[0])}-{row[3]}" for row in GRADIENTS],
)
def test_gradients_are_derivatives(
    backward: OpView, forward: OpView, origin: dict[str, str], wanted: str
) -> None:
    """Compare <dy, f(x + hv) - f(x - hv)> / 2h with <dx, v>."""
    inputs, results = drawn(forward)
    rng = np.random.default_rng(6)
    dy = rng.normal(size=forward.shape[forward.outputs[0]])
    v = rng.normal(size=inputs[wanted].shape)
    known = {**inputs, **results}
    dx = run(backward, {name: known[source] if source else dy for name, source in origin.items()})
    h = 1e-6
    ends = [run(forward, {**inputs, wanted: inputs[wanted] + s * h * v}) for s in (1, -1)]
    change = (ends[0][forward.outputs[0]] - ends[1][forward.outputs[0]]) / (2 * h)
    assert np.sum(dy * change) == pytest.approx(np.sum(dx[backward.outputs[0]] * v), rel=1e-6)


def test_sgd_by_hand() -> None:
    view = case("sgd_update", "model_0: 1, model_diff_0: 1, learning_rate_0: 1 ->", **UPDATE)
    inputs = {"model_0": [2.0], "model_diff_0": [4.0], "learning_rate_0": [0.1]}
    results = run(view, {name: np.array(value) for name, value in inputs.items()})
    gradient = 4.0 * 0.5 + 0.1 + 0.2 * 2.0
    np.testing.assert_allclose(results["model_0"], 2.0 - 0.15 * (gradient + 0.3 * 2.0))


@pytest.mark.parametrize(
    ("nesterov", "maximize", "direction"),
    [
        (False, False, 0.9 * 3 + 0.9 * 4),
        (True, False, 4 + 0.9 * (0.9 * 3 + 0.9 * 4)),
        (False, True, -(0.9 * 3 + 0.9 * 4)),
    ],
)
def test_momentum_by_hand(nesterov: bool, maximize: bool, direction: float) -> None:
    plain = {"scale": 1.0, "l1": 0.0, "l2": 0.0, "weight_decay": 0.0, "learning_rate_scale": 1.0}
    attrs = {**MOMENTUM, **plain, "nesterov": nesterov, "maximize": maximize}
    names = "model_0: 1, model_diff_0: 1, momentum_0: 1, learning_rate_0: 1 ->"
    inputs = {"model_0": 2.0, "model_diff_0": 4.0, "momentum_0": 3.0, "learning_rate_0": 0.1}
    view = case("momentum_update", names, **attrs)
    results = run(view, {name: np.array([value]) for name, value in inputs.items()})
    np.testing.assert_allclose(results["momentum_0"], 0.9 * 3 + 0.9 * 4)
    np.testing.assert_allclose(results["model_0"], 2.0 - 0.1 * direction)


def test_first_adam_step_is_the_sign() -> None:
    """With empty states and bias correction, Adam's first step is rate * sign(gradient)."""
    plain = {"scale": 1.0, "l1": 0.0, "l2": 0.0, "weight_decay": 0.0, "learning_rate_scale": 1.0}
    attrs = {**ADAM, **plain, "epsilon": 0.0}
    attrs |= {"bias_correction1_val": 1 - 0.9, "bias_correction2_val": 1 - 0.99}
    view = case(
        "adam_update", "model_0: 3, model_diff_0: 3, m_0: 3, v_0: 3, learning_rate_0: 1 ->", **attrs
    )
    gradient, zero = np.array([3.0, -0.2, 1e-3]), np.zeros(3)
    inputs = {"model_0": zero, "model_diff_0": gradient, "m_0": zero, "v_0": zero}
    results = run(view, {**inputs, "learning_rate_0": np.array([0.1])})
    np.testing.assert_allclose(results["model_0"], -0.1 * np.sign(gradient))
    factor = case("adam_bias_correction_factor", "train_step_0: 1 -> out_0: 1", beta=0.9)
    assert run(factor, {"train_step_0": np.array([1])})["out_0"] == pytest.approx(1 - 0.9**2)
