"""Ops that graphs on GPUs have and graphs on CPUs lack; attributes as the engine writes them."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case, each

_LAYERS = (
    "x: 8 4, weights: 12 4, weights_1: 16 12, weights_2: 4 16, biases: 12, biases_1: 16, "
    "biases_2: 4 -> out: 8 4, cublas_aux: 8 4, cublas_aux_1: 8 4, cublas_aux_2: 8 4, "
    "hidden: 8 12, hidden_1: 8 16, hidden_2: 8 4"
)
_PRODUCT = {"transpose_a": False, "transpose_b": True, "alpha": 1.0}
_SOFTMAX = {"scale_value": 0.5, "mask_fill_value": -10000.0}
_RATE, _KEPT = 0.10000000149011612, 1.1111111640930176  # of a dropout, and one over the rest
_DROPOUT = {"dropout_scale_value": _KEPT}
_TRIL = {"diagonal": 0, "tril_scale_value": 0.5, "mask_scale_value": _KEPT}
_SEED = {"rate": _RATE, "seed": 2608053902090870}
_DOTS = {"pooling": "none", "self_interaction": False}
_BATCHNORM = {"axis": 1, "epsilon": 9.999999747378752e-06}
_INFERENCE = {
    f"{name}_hidden_slice_{end}": value
    for name in ("query", "key", "value")
    for end, value in (("start", 0), ("end", -1))
}


def _scale_tril(diagonal: int, fill: float, scale: float) -> dict[str, Any]:
    attrs: dict[str, Any] = {"diagonal": diagonal}
    for name, value in (("fill", fill), ("scale", scale)):
        whole = isinstance(value, int)
        attrs[f"is_floating_{name}_value"] = not whole
        attrs[f"floating_{name}_value"] = 0.0 if whole else value
        attrs[f"integer_{name}_value"] = value if whole else 0
    return attrs


def _norm(axis: int, *, affine: bool) -> dict[str, Any]:
    return {
        "begin_norm_axis": axis, "begin_params_axis": axis, "epsilon": 1e-05, "center": affine,
        "scale": affine,
    }  # fmt: skip


def _group(activation: str = "none", *, affine: bool = True) -> dict[str, Any]:
    return {
        "num_groups": 4, "affine": affine, "data_format": "channels_first",
        "activation": activation, "epsilon": 1e-05,
    }  # fmt: skip


_TOKENS = "dy: 4 8 12, x: 4 8 12"
_STATISTICS = "mean: 4 8, inv_variance: 4 8"
_CHANNELS = "mean: 4 4, inv_variance: 4 4"
_MOVING = "moving_mean: 8, moving_variance: 8, gamma: 8, beta: 8"
_SAVED = "mean: 8, inv_variance: 8, gamma: 8, beta: 8, reserve_space: 8"

CASES: tuple[OpView, ...] = (
    case("layer_norm", f"x: 4 8 12, gamma: 12, beta: 12 -> y: 4 8 12, {_STATISTICS}",
         **_norm(2, affine=True)),
    case("layer_norm", "x: 4 8 12 -> y: 4 8 12, inv_variance: 4, mean: 4",
         **_norm(1, affine=False)),
    *each("layer_norm_grad", "dy: 4 8, x: 4 8, mean: 4, inv_variance: 4, gamma: 8 -> dx: 4 8",
          f"{_TOKENS}, mean: 4, inv_variance: 4 -> dx: 4 8 12", begin_norm_axis=1, epsilon=1e-05),
    case("layer_norm_grad",
         f"{_TOKENS}, {_STATISTICS}, gamma: 12, _add_to_output: 4 8 12 -> dx: 4 8 12",
         begin_norm_axis=2, epsilon=1e-05),
    case("layer_norm_param_grad", f"{_TOKENS}, {_STATISTICS} -> gamma_diff: 12, beta_diff: 12",
         begin_params_axis=2),
    case("layer_norm_param_grad", "dy: 4 8 4 6, x: 4 8 4 6, mean: 4, inv_variance: 4 -> "
         "gamma_diff: 8 4 6, beta_diff: 8 4 6", begin_params_axis=1),
    case("rms_norm", "x: 4 8 12, weight: 12 -> y: 4 8 12, inv_rms: 4 8",
         normalized_shape=(12,), epsilon=1e-05),
    case("rms_norm", "x: 4 8 12 -> y: 4 8 12, inv_rms: 4", normalized_shape=(8, 12), epsilon=1e-05),
    *each("rms_norm_grad", f"{_TOKENS}, inv_rms: 4 8, weight: 12 -> dx: 4 8 12",
          f"{_TOKENS}, inv_rms: 4 -> dx: 4 8 12"),
    *each("rms_norm_param_grad", f"{_TOKENS}, inv_rms: 4 8 -> weight_grad: 12",
          "dy: 4 8 4 6, x: 4 8 4 6, inv_rms: 4 -> weight_grad: 8 4 6"),
    case("group_norm", f"x: 4 8 4 3, gamma: 8, beta: 8 -> y: 4 8 4 3, {_CHANNELS}", **_group()),
    case("group_norm", f"x: 4 8 4 -> y: 4 8 4, {_CHANNELS}", **_group(affine=False)),
    case("group_norm", f"x: 4 6 8, gamma: 8, beta: 8 -> y: 4 6 8, {_CHANNELS}",
         **_group("silu") | {"data_format": "channels_last"}),
    case("group_norm_grad", f"dy: 4 8 3, x: 4 8 3, {_CHANNELS}, gamma: 8 -> dx: 4 8 3",
         num_groups=4, epsilon=1e-05),
    case("group_norm_grad", "dy: 4 8 4, x: 4 8 4, mean: 4 1, inv_variance: 4 1 -> dx: 4 8 4",
         num_groups=1, epsilon=1e-05),
    *each("group_norm_param_grad", f"{_TOKENS}, {_CHANNELS} -> dgamma: 8, dbeta: 8",
          "dy: 4 8 4 6, x: 4 8 4 6, mean: 4 1, inv_variance: 4 1 -> dgamma: 8, dbeta: 8"),
    case("matmul", "_add_to_output: 8 4, a: 8 12, b: 12 4 -> out: 8 4",
         **_PRODUCT | {"transpose_b": False}),
    case("batch_matmul", "a: 4 8 6, b: 4 4 6, _add_to_output: 4 8 4 -> out: 4 8 4", **_PRODUCT),
    case("broadcast_matmul", "a: 4 8 6, b: 4 6, _add_to_output: 4 8 4 -> out: 4 8 4", **_PRODUCT),
    case("broadcast_matmul_grad_b", "_add_to_output: 12 4, a: 4 8 12, b: 4 8 4 -> out: 12 4",
         alpha=1.0),
    *each("fused_matmul_bias", "x: 4 8 12, weight: 16 12, bias: 16 -> out: 4 8 16",
          "x: 8 12, weight: 4 12, bias: 4, _add_to_output: 8 4 -> out: 8 4"),
    case("cublas_fused_mlp", _LAYERS, skip_final_activation=False),
    case("cublas_fused_mlp", _LAYERS, skip_final_activation=True),
    case("cublas_bias_add_relu_matmul_grad",
         "dy: 8 4, weight: 4 12, aux: 8 4 -> d_grad: 8 12, d_bias: 12", alpha=1.0),
    case(
        "cublas_fused_mlp_grad", "dy: 8 4, x: 8 16, weights: 12 16, weights_1: 4 12, "
        "cublas_aux: 8 4, cublas_aux_1: 8 4, hidden: 8 12, hidden_1: 8 4 -> d_x: 8 16, "
        "d_biases: 12, d_biases_1: 4, d_weights: 12 16, d_weights_1: 4 12", alpha_list=(1.0,),
    ),
    case("fused_matmul_bias_add_relu_dropout", _LAYERS, skip_final_activation=False,
         dropout_rate_list=(_RATE, 0.20000000298023224, 0.0)),
    case("fused_relu_dropout_grad", "dy: 8 12, mask: 8 4 -> dx: 8 12", scale=1.25),
    case("fused_scale_mask_softmax", "x: 4 8 4 6, mask: 4 1 4 6 -> y: 4 8 4 6", **_SOFTMAX),
    case("fused_scale_mask_softmax_grad", "y: 4 8 4 6, dy: 4 8 4 6, mask: 4 1 4 6 -> dx: 4 8 4 6",
         scale_value=0.5),
    case("fused_scale_mask_softmax_dropout",
         "x: 4 4 6, mask: 1 4 6, dropout_mask: 4 4 6 -> y: 4 4 6, softmax_y: 4 4 6",
         **_SOFTMAX, **_DROPOUT),
    case("fused_scale_mask_softmax_dropout_grad",
         "softmax_y: 4 4 6, dy: 4 4 6, mask: 4 1 6, dropout_mask: 4 4 6 -> dx: 4 4 6",
         scale_value=0.5, **_DROPOUT),
    case("fused_bias_add_scale_mask_softmax_dropout",
         "x: 4 4 6, bias: 4 6, mask: 4 1 6, dropout_mask: 4 4 6 -> y: 4 4 6, softmax_y: 4 4 6",
         **_SOFTMAX, **_DROPOUT),
    case("fused_tril_scale_softmax_mask_scale",
         "x: 4 4 6, mask: 4 4 6 -> y: 4 4 6, softmax_y: 4 4 6", tril_fill_value=-10000.0, **_TRIL),
    case("fused_tril_scale_softmax_mask_scale_grad",
         "softmax_y: 4 4 6, dy: 4 4 6, mask: 4 4 6 -> dx: 4 4 6", **_TRIL),
    case("fused_scale_tril", "in: 4 8 12 -> out: 4 8 12", **_scale_tril(0, 0.0, 0.5)),
    case("fused_scale_tril", "in: 4 8 12 -> out: 4 8 12", **_scale_tril(1, -5, 2)),
    case("fused_self_attention_query_mul_key_and_value",
         "hidden_states: 3 4 48 -> query_mul_key: 4 8 3 3, value: 4 8 3 2",
         head_size=2, alpha=0.5),
    case("fused_self_attention_query_mul_key_and_value_grad",
         "query_mul_key_grad: 4 4 3 3, value_grad: 4 4 3 2, hidden_states: 3 4 24 -> "
         "hidden_states_grad: 3 4 24", alpha=0.5),
    case("fused_multi_head_attention_inference",
         "query: 4 8 6, key: 4 8 6, value: 4 8 9 -> out: 4 8 9",
         num_heads=3, causal=True, **_INFERENCE),
    case("fused_dot_feature_interaction",
         "features: 4 1 8, features_1: 4 5 8, output_concat: 4 8 -> out: 4 24",
         output_padding=1, has_output_concat=True, **_DOTS),
    case("fused_dot_feature_interaction", "features: 4 3 8 -> out: 4 6",
         output_padding=0, has_output_concat=False, **_DOTS | {"self_interaction": True}),
    case("fused_dot_feature_interaction", "features: 4 1 8, features_1: 4 5 8 -> out: 4 8",
         output_padding=0, has_output_concat=False, **_DOTS | {"pooling": "sum"}),
    case("fused_dot_feature_interaction_grad", "dy: 4 24, features: 4 1 8, features_1: 4 5 8 -> "
         "features_grad: 4 1 8, features_grad_1: 4 5 8, output_concat_grad: 4 8",
         output_concat_grad_dim=8, **_DOTS),
    case("fused_dot_feature_interaction_grad", "dy: 4 8, features: 4 6 8 -> features_grad: 4 6 8",
         output_concat_grad_dim=0, **_DOTS | {"pooling": "sum"}),
    case("fused_bias_add_gelu", "a: 4 6 8, b: 8 -> out: 4 6 8", axis=2),
    *each("fused_bias_add_gelu_grad", "a: 4 8, b: 8, dy: 4 8 -> dx: 4 8",
          "a: 4 6 8, b: 6, dy: 4 6 8 -> dx: 4 6 8", axis=1),
    *each("fused_bias_add_mask_scale", "a: 4 8, b: 8, mask: 4 8 -> out: 4 8",
          "a: 4 8, b: 8, mask: 4 8, _add_to_output: 4 8 -> out: 4 8", axis=1, scale=_KEPT),
    case("fused_fast_gelu_mul", "in: 4 8, multiplier: 4 8 -> out: 4 8"),
    case("fused_fast_gelu_mul_grad",
         "out_diff: 4 8, in: 4 8, multiplier: 4 8 -> in_diff: 4 8, multiplier_diff: 4 8"),
    case("fused_weighted_sum", "in: 4 8, in_1: 4 8 -> out: 4 8", weights=(0.5, 0.25), alpha=2.0),
    *each("dropout", "in: 4 8 -> out: 4 8, mask: 4 8",
          "in: 4 8, _add_to_output: 4 8 -> out: 4 8, mask: 4 8", rate=_RATE),
    case("random_mask_like", "like: 4 8 -> out: 4 8", **_SEED),
    case("dropout_grad", "dy: 4 8, mask: 4 8 -> dx: 4 8", scale=_KEPT),
    *(
        case("normalization_add_relu", f"x: {x}, addend: {x}, {_MOVING} -> "
             f"y: {x}, reserve_space: 8, mean: 8, inv_variance: 8",
             training=True, momentum=0.9, **_BATCHNORM)
        for x in ("4 8 2 4", "1 8 4 8")
    ),
    *each("normalization_add_relu_grad", f"x: 4 8 2 4, dy: 4 8 2 4, {_SAVED}, y: 4 8 2 4 -> "
          "dx: 4 8 2 4, gamma_diff: 8, beta_diff: 8, addend_diff: 4 8 2 4",
          f"x: 1 8 4 8, dy: 1 8 4 8, {_SAVED}, y: 1 8 4 8 -> "
          "dx: 1 8 4 8, gamma_diff: 8, beta_diff: 8", **_BATCHNORM),
    *each("amp_white_identity amp_black_identity", "in: 4 8 -> out: 4 8"),
    case("fused_cast_scale", "x: 4 8, scale_by_tensor: 1 -> y: 4 8", scale=1.0),
    case("scalar_mul_by_tensor", "x: 4 8, scalar: 1 -> y: 4 8"),
    case("count_not_finite", "x: 4 8 -> y: 1"),
    *each("multi_count_not_finite", "x: 8, x_1: 12 -> y: 1",
          "x: 4 8, x_1: 8 4 4, x_2: 4 12 -> y: 1"),
    case("dynamic_loss_scale_schedule",
         "count_not_finite: 1, loss_scale: 1, good_step_counter: 1 ->",
         increment_period=2000, multiplier=2.0),
    *each("assign_if assign_if_not", "ref: 4 8, value: 4 8, condition: 1 ->"),
)  # fmt: skip
