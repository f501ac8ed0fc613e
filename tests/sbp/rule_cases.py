"""At least one realistic op of every registered type: what the tests of rules run over."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases import cuda


def case(op_type: str, text: str, **attrs: Any) -> OpView:
    """Read "a_0: 8 4, b_0: 4 12 -> out_0: 8 12" as the shapes of an op."""
    sides = []
    for side in text.split("->"):
        pairs = (part.split(":") for part in side.split(",") if part.strip())
        sides.append({name.strip(): tuple(map(int, dims.split())) for name, dims in pairs})
    inputs, outputs = sides
    return OpView(op_type, tuple(inputs), tuple(outputs), inputs | outputs, attrs)


def _number(value: float) -> dict[str, Any]:
    """Return the attributes of a scalar op, as the engine writes them."""
    whole = isinstance(value, int)
    return {
        "has_int_operand": whole,
        "has_float_operand": not whole,
        "int_operand": value if whole else 0,
        "float_operand": 0.0 if whole else value,
    }


def _matmul(op_type: str, text: str, transposed: str = "", alpha: float = 1.0) -> OpView:
    return case(
        op_type, text, transpose_a="a" in transposed, transpose_b="b" in transposed, alpha=alpha
    )


def _conv(kernel: int, stride: int, padding: int, dilation: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "kernel_size": (kernel,) * 2, "strides": (stride,) * 2, "padding_before": (padding,) * 2,
        "dilation_rate": (dilation,) * 2, "groups": 1, "data_format": "channels_first", **more,
    }  # fmt: skip


def _pool(kernel: int, stride: int, padding: int, dilation: int = 1) -> dict[str, Any]:
    return {
        "kernel_size": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 2,
        "dilation": (dilation,) * 2, "ceil_mode": False, "data_format": "channels_first",
    }  # fmt: skip


def _slice(start: str, stop: str, step: str) -> dict[str, Any]:
    bounds = {"start": start, "stop": stop, "step": step}
    return {name: tuple(map(int, text.split())) for name, text in bounds.items()}


UPDATE = {
    "scale": 0.5, "l1": 0.1, "l2": 0.2, "weight_decay": 0.3, "learning_rate_scale": 1.5,
    "learning_rate_val": 0.0,
}  # fmt: skip
ADAM = {
    **UPDATE, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3, "amsgrad": False,
    "bias_correction1_val": 0.8, "bias_correction2_val": 0.7,
}  # fmt: skip
MOMENTUM = {**UPDATE, "beta": 0.9, "dampening": 0.1, "nesterov": False, "maximize": False}

_X_TO_Y = "relu tanh sigmoid exp log sqrt rsqrt square abs negative"
_IN_TO_OUT = "gelu identity copy"
_FROM_X = "gelu_grad tanh_grad exp_grad log_grad sqrt_grad rsqrt_grad square_grad abs_grad"
_BROADCASTS = (
    "x_0: 8 4, y_0: 8 4 -> z_0: 8 4",
    "x_0: 4 8 12, y_0: 12 -> z_0: 4 8 12",
    "x_0: 4 8 12, y_0: 8 1 -> z_0: 4 8 12",
    "x_0: 4 1 12, y_0: 8 12 -> z_0: 4 8 12",
    "x_0: 1 8, y_0: 4 1 -> z_0: 4 8",
    "x_0:, y_0: 4 8 -> z_0: 4 8",
    "x_0:, y_0: -> z_0:",
)
_RESHAPES = (
    "8 12 -> 8 12", "8 8 12 -> 8 8 3 4", "4 8 3 4 -> 4 8 12", "1 4 8 -> 4 8", "4 8 -> 1 4 1 8",
    "4 8 12 -> 32 12", "16 12 -> 4 4 12", "8 12 -> 12 8", "12 4 -> 8 6", "4 6 8 -> 8 3 8",
    "8 -> 8", "1 -> ",
)  # fmt: skip

CASES: tuple[OpView, ...] = (
    *(case(name, "x_0: 4 8 -> y_0: 4 8") for name in _X_TO_Y.split()),
    *(case(name, "in_0: 4 8 -> out_0: 4 8") for name in _IN_TO_OUT.split()),
    *(case(name, "dy_0: 4 8, x_0: 4 8 -> dx_0: 4 8") for name in _FROM_X.split()),
    case("relu_grad", "y_0: 4 8, dy_0: 4 8 -> dx_0: 4 8"),
    case("sigmoid_grad", "y_0: 4 8, dy_0: 4 8 -> dx_0: 4 8"),
    case("scalar_add", "in_0: 4 8 -> out_0: 4 8", **_number(1e-5)),
    case("scalar_mul", "in_0: 4 8 -> out_0: 4 8", **_number(0.125)),
    case("scalar_mul", "in_0: -> out_0:", **_number(-1)),
    case("scalar_div", "in_0: 4 8 -> out_0: 4 8", **_number(16.0)),
    case("scalar_pow", "in_0: 4 8 -> out_0: 4 8", **_number(3)),
    case("scalar_pow_grad", "x_0: 4 8, dy_0: 4 8 -> dx_0: 4 8", **_number(3)),
    case("cast", "in_0: 4 8 -> out_0: 4 8", dtype=2),
    case("cast", "in_0: 4 8 -> out_0: 4 8", dtype=6),
    case("cast", "in_0: 4 8 -> out_0: 4 8", dtype=12),
    case("ones_like", "like_0: 4 8 -> out_0: 4 8"),
    case("ones_like", "like_0: -> out_0:"),
    case("zero_like", "like_0: 4 8 -> out_0: 4 8"),
    case("add_n", "in_0: 4 8, in_1: 4 8 -> out_0: 4 8"),
    case("add_n", "in_0: 4 8, in_1: 4 8, in_2: 4 8 -> out_0: 4 8"),
    case("bias_add", "a_0: 4 8 4 4, b_0: 8 -> out_0: 4 8 4 4", axis=1),
    *(case("broadcast_add", text) for text in _BROADCASTS),
    *(case("broadcast_sub", text) for text in _BROADCASTS),
    *(case("broadcast_mul", text) for text in _BROADCASTS),
    *(case("broadcast_div", text) for text in _BROADCASTS),
    case("broadcast_div_grad", "z_0:, y_0:, dz_0: -> dy_0:"),
    case("broadcast_div_grad", "dz_0: 4 8, y_0: 4 8, z_0: 4 8 -> dy_0: 4 8"),
    case("broadcast_div_grad", "dz_0: 4 8 12, y_0: 8 1, z_0: 4 8 12 -> dy_0: 8 1"),
    _matmul("matmul", "a_0: 8 4, b_0: 4 12 -> out_0: 8 12"),
    _matmul("matmul", "a_0: 8 4, b_0: 12 4 -> out_0: 8 12", "b"),
    _matmul("matmul", "a_0: 4 8, b_0: 4 12 -> out_0: 8 12", "a", alpha=0.5),
    _matmul("matmul", "a_0: 4 8, b_0: 12 4 -> out_0: 8 12", "ab"),
    _matmul("batch_matmul", "a_0: 8 4 12, b_0: 8 12 4 -> out_0: 8 4 4"),
    _matmul("batch_matmul", "a_0: 4 4 4 8, b_0: 4 4 12 8 -> out_0: 4 4 4 12", "b", alpha=2.0),
    _matmul("batch_matmul", "a_0: 4 8 4, b_0: 4 8 12 -> out_0: 4 4 12", "a"),
    _matmul("broadcast_matmul", "a_0: 4 8 12, b_0: 12 4 -> out_0: 4 8 4"),
    _matmul("broadcast_matmul", "a_0: 4 8 12, b_0: 4 12 -> out_0: 4 8 4", "b"),
    _matmul("broadcast_matmul", "a_0: 8 12, b_0: 4 12 4 -> out_0: 4 8 4"),
    _matmul("broadcast_matmul", "a_0: 4 4 4 8, b_0: 4 8 12 -> out_0: 4 4 4 12"),
    case("broadcast_matmul_grad_b", "a_0: 8 12, b_0: 8 4 -> out_0: 12 4", alpha=1.0),
    case("broadcast_matmul_grad_b", "a_0: 4 8 12, b_0: 4 8 4 -> out_0: 12 4", alpha=0.5),
    *(
        case("reshape", f"in_0: {before} -> out_0: {after}", shape=tuple(map(int, after.split())))
        for before, after in (text.split(" -> ") for text in _RESHAPES)
    ),
    case("reshape_like", "in_0: 4 8, like_0: 4 1 8 -> out_0: 4 1 8"),
    case("expand_dims", "in_0: 4 8 -> out_0: 4 1 8", axis=1),
    case("squeeze", "in_0: 4 1 8 -> out_0: 4 8", axes=(1,)),
    case("transpose", "input_0: 4 8 -> output_0: 4 8", perm=(0, 1)),
    case("transpose", "input_0: 4 8 4 12 -> output_0: 4 4 12 8", perm=(2, 0, 3, 1)),
    case("slice", "x_0: 12 8 4 -> y_0: 4 8 4", **_slice("4 0 0", "8 8 4", "1 1 1")),
    case("slice", "x_0: 4 8 -> y_0: 4 4", **_slice("0 0", "4 8", "1 2")),
    case(
        "slice_grad", "dy_0: 4 8 4 -> dx_0: 12 8 4",
        **_slice("4 0 0", "8 8 4", "1 1 1"), like_shape=(12, 8, 4),
    ),
    case(
        "slice_grad", "dy_0: 4 4 -> dx_0: 4 8", **_slice("0 1", "4 8", "1 2"), like_shape=(4, 8)
    ),
    case("expand", "in_0: 4 8 -> out_0: 4 4 8", expand_shape=(4, 4, 8)),
    case("expand", "in_0: 4 1 8 -> out_0: 4 12 8", expand_shape=(4, 12, 8)),
    case("broadcast_like", "x_0:, like_0: 4 8 -> y_0: 4 8", broadcast_axes=(0, 1)),
    case("broadcast_like", "x_0: 4 1, like_0: 4 8 -> y_0: 4 8", broadcast_axes=(1,)),
    case("broadcast_like", "x_0: 4, like_0: 4 8 4 -> y_0: 4 8 4", broadcast_axes=(1, 2)),
    case("broadcast_like", "x_0: 8 1, like_0: 4 8 4 -> y_0: 4 8 4", broadcast_axes=(0, 2)),
    case(
        "reduce_sum", "input_tensor_0: 4 8 12 -> output_tensor_0: 4 1 12", axis=(1,), keepdims=True
    ),
    case(
        "reduce_sum", "input_tensor_0: 4 8 4 4 -> output_tensor_0: 8", axis=(0, 2, 3),
        keepdims=False,
    ),
    case("reduce_sum", "input_tensor_0: 4 8 -> output_tensor_0:", axis=(0, 1), keepdims=False),
    case("reduce_sum_like", "x_0: 4 8 12, like_0: 12 -> y_0: 12", axis=(0, 1)),
    case("reduce_sum_like", "x_0: 4 8 12, like_0: 4 8 1 -> y_0: 4 8 1", axis=(2,)),
    case("reduce_sum_like", "x_0: 4 8 12, like_0: 8 1 -> y_0: 8 1", axis=(0, 2)),
    case("reduce_sum_like", "x_0: 4 8 12, like_0: 4 -> y_0: 4", axis=(1, 2)),
    case("reduce_sum_like", "x_0: 4 8, like_0: -> y_0:", axis=(0, 1)),
    case("softmax", "in_0: 4 8 12 -> out_0: 4 8 12"),
    case("softmax_grad", "y_0: 4 8 12, dy_0: 4 8 12 -> dx_0: 4 8 12"),
    case("log_softmax", "in_0: 8 12 -> prob_0: 8 12"),
    case("log_softmax_grad", "prob_0: 8 12, dy_0: 8 12 -> dx_0: 8 12"),
    case("var", "input_0: 4 8 12 -> output_0: 4 8 1", dim=(2,), unbiased=False, keepdim=True),
    case("var", "input_0: 4 8 12 -> output_0: 4 12", dim=(1,), unbiased=True, keepdim=False),
    case("gather", "in_0: 16 4, indices_0: 4 8 -> out_0: 4 8 4", axis=0),
    case("gather", "in_0: 4 16 8, indices_0: 4 -> out_0: 4 4 8", axis=1),
    case(
        "unsorted_segment_sum_like",
        "data_0: 4 8 4, segment_ids_0: 4 8, like_0: 16 4 -> out_0: 16 4", axis=0,
    ),
    case(
        "unsorted_segment_sum_like",
        "data_0: 4 12 8, segment_ids_0: 12, like_0: 4 16 8 -> out_0: 4 16 8", axis=1,
    ),
    case("nll", "input_0: 8 12, target_0: 8 -> output_0: 8, out_weight_0: 8", ignore_index=-100),
    case(
        "nll", "input_0: 8 12, target_0: 8, weight_0: 12 -> output_0: 8, out_weight_0: 8",
        ignore_index=-100,
    ),
    case(
        "nll_grad", "out_grad_0: 8, input_0: 8 12, target_0: 8 -> in_grad_0: 8 12",
        ignore_index=-100,
    ),
    case(
        "nll_grad", "out_grad_0: 8, input_0: 8 12, target_0: 8, weight_0: 12 -> in_grad_0: 8 12",
        ignore_index=3,
    ),
    case("conv2d", "in_0: 4 4 5 6, weight_0: 8 4 3 3 -> out_0: 4 8 5 6", **_conv(3, 1, 1)),
    case(
        "conv2d", "in_0: 4 8 7 8, weight_0: 8 4 2 2, bias_0: 8 -> out_0: 4 8 4 4",
        **_conv(2, 2, 1, 2, groups=2),
    ),
    case(
        "conv_data_grad", "dy_0: 4 8 4 4, filter_0: 8 4 2 2, x_like_0: 4 8 7 8 -> dx_0: 4 8 7 8",
        **_conv(2, 2, 1, 2, groups=2),
    ),
    case(
        "conv_filter_grad", "dy_0: 4 8 4 4, x_0: 4 8 7 8 -> filter_diff_0: 8 4 2 2",
        **_conv(2, 2, 1, 2, groups=2),
    ),
    case("max_pool_2d", "x_0: 4 8 4 8 -> y_0: 4 8 2 4, indice_0: 4 8 2 4", **_pool(2, 2, 0)),
    case("max_pool_2d", "x_0: 4 8 5 6 -> y_0: 4 8 3 3, indice_0: 4 8 3 3", **_pool(3, 2, 1)),
    case(
        "max_pool_2d_grad", "x_0: 4 8 5 6, indice_0: 4 8 3 3, dy_0: 4 8 3 3 -> dx_0: 4 8 5 6",
        **_pool(3, 2, 1),
    ),
    case("adaptive_avg_pool2d", "x_0: 4 8 4 5 -> y_0: 4 8 2 3", output_size=(2, 3)),
    case(
        "adaptive_avg_pool2d_grad", "x_0: 4 8 4 5, dy_0: 4 8 2 3 -> dx_0: 4 8 4 5", output_size=()
    ),
    case("sgd_update", "model_0: 4 8, model_diff_0: 4 8, learning_rate_0: 1 ->", **UPDATE),
    case(
        "momentum_update",
        "model_0: 4 8, model_diff_0: 4 8, momentum_0: 4 8, learning_rate_0: 1 ->", **MOMENTUM,
    ),
    case(
        "momentum_update",
        "model_0: 8, model_diff_0: 8, momentum_0: 8, learning_rate_0: 1 ->",
        **MOMENTUM | {"nesterov": True, "maximize": True},
    ),
    case(
        "adam_update",
        "model_0: 4 8, model_diff_0: 4 8, m_0: 4 8, v_0: 4 8, learning_rate_0: 1, "
        "bias_correction1_0: 1, bias_correction2_0: 1 ->", **ADAM,
    ),
    case(
        "adam_update",
        "model_0: 8, model_diff_0: 8, m_0: 8, v_0: 8, max_v_0: 8, learning_rate_0: 1 ->",
        **ADAM | {"amsgrad": True},
    ),
    case("adam_bias_correction_factor", "train_step_0: 1 -> out_0: 1", beta=0.9),
    *cuda.CASES,
)  # fmt: skip


def case_id(view: OpView) -> str:
    """Return a short test id: the op type and the input shapes."""
    shapes = "-".join("x".join(map(str, view.shape[name])) or "0d" for name in view.inputs)
    return f"{view.type}[{shapes}]"
