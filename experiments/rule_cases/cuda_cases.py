"""Ops that graphs on GPUs have and graphs on CPUs lack; attributes as the engine writes them."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case

_LAYERS = (
    "x_0: 8 4, weights_0: 12 4, weights_1: 16 12, weights_2: 4 16, biases_0: 12, biases_1: 16, "
    "biases_2: 4 -> out_0: 8 4, cublas_aux_0: 8 4, cublas_aux_1: 8 4, cublas_aux_2: 8 4, "
    "hidden_0: 8 12, hidden_1: 8 16, hidden_2: 8 4"
)
_PRODUCT = {"transpose_a": False, "transpose_b": True, "alpha": 1.0}
_SOFTMAX = {"scale_value": 0.5, "mask_fill_value": -10000.0}
_DROPOUT = {"dropout_scale_value": 1.1111111640930176}
_TRIL = {"diagonal": 0, "tril_scale_value": 0.5, "mask_scale_value": 1.1111111640930176}
_SEED = {"rate": 0.10000000149011612, "seed": 2608053902090870}
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


# Ops for which one draw proves nothing about P: an infinite number stays infinite in one part only,
# and a drawn condition hides one of two branches.
UNDECIDED = {
    "count_not_finite", "multi_count_not_finite", "dynamic_loss_scale_schedule", "assign_if",
    "assign_if_not",
}  # fmt: skip

CASES: tuple[OpView, ...] = (
    case(
        "layer_norm",
        "x_0: 4 8 12, gamma_0: 12, beta_0: 12 -> y_0: 4 8 12, mean_0: 4 8, inv_variance_0: 4 8",
        **_norm(2, affine=True),
    ),
    case(
        "layer_norm", "x_0: 4 8 12 -> y_0: 4 8 12, inv_variance_0: 4, mean_0: 4",
        **_norm(1, affine=False),
    ),
    case(
        "layer_norm_grad", "dy_0: 4 8, x_0: 4 8, mean_0: 4, inv_variance_0: 4, gamma_0: 8 -> "
        "dx_0: 4 8", begin_norm_axis=1, epsilon=1e-05,
    ),
    case(
        "layer_norm_grad", "dy_0: 4 8 12, x_0: 4 8 12, mean_0: 4, inv_variance_0: 4 -> "
        "dx_0: 4 8 12", begin_norm_axis=1, epsilon=1e-05,
    ),
    case(
        "layer_norm_grad", "dy_0: 4 8 12, x_0: 4 8 12, mean_0: 4 8, inv_variance_0: 4 8, "
        "gamma_0: 12, _add_to_output_0: 4 8 12 -> dx_0: 4 8 12", begin_norm_axis=2, epsilon=1e-05,
    ),
    case(
        "layer_norm_param_grad", "dy_0: 4 8 12, x_0: 4 8 12, mean_0: 4 8, inv_variance_0: 4 8 -> "
        "gamma_diff_0: 12, beta_diff_0: 12", begin_params_axis=2,
    ),
    case(
        "layer_norm_param_grad", "dy_0: 4 8 4 6, x_0: 4 8 4 6, mean_0: 4, inv_variance_0: 4 -> "
        "gamma_diff_0: 8 4 6, beta_diff_0: 8 4 6", begin_params_axis=1,
    ),
    case(
        "rms_norm", "x_0: 4 8 12, weight_0: 12 -> y_0: 4 8 12, inv_rms_0: 4 8",
        normalized_shape=(12,), epsilon=1e-05,
    ),
    case(
        "rms_norm", "x_0: 4 8 12 -> y_0: 4 8 12, inv_rms_0: 4", normalized_shape=(8, 12),
        epsilon=1e-05,
    ),
    case(
        "rms_norm_grad", "dy_0: 4 8 12, x_0: 4 8 12, inv_rms_0: 4 8, weight_0: 12 -> "
        "dx_0: 4 8 12",
    ),
    case("rms_norm_grad", "dy_0: 4 8 12, x_0: 4 8 12, inv_rms_0: 4 -> dx_0: 4 8 12"),
    case(
        "rms_norm_param_grad", "dy_0: 4 8 12, x_0: 4 8 12, inv_rms_0: 4 8 -> weight_grad_0: 12"
    ),
    case(
        "rms_norm_param_grad", "dy_0: 4 8 4 6, x_0: 4 8 4 6, inv_rms_0: 4 -> weight_grad_0: 8 4 6"
    ),
    case(
        "group_norm", "x_0: 4 8 4 3, gamma_0: 8, beta_0: 8 -> y_0: 4 8 4 3, mean_0: 4 4, "
        "inv_variance_0: 4 4", **_group(),
    ),
    case(
        "group_norm", "x_0: 4 8 4 -> y_0: 4 8 4, mean_0: 4 4, inv_variance_0: 4 4",
        **_group(affine=False),
    ),
    case(
        "group_norm", "x_0: 4 6 8, gamma_0: 8, beta_0: 8 -> y_0: 4 6 8, mean_0: 4 4, "
        "inv_variance_0: 4 4", **_group("silu") | {"data_format": "channels_last"},
    ),
    case(
        "group_norm_grad", "dy_0: 4 8 3, x_0: 4 8 3, mean_0: 4 4, inv_variance_0: 4 4, "
        "gamma_0: 8 -> dx_0: 4 8 3", num_groups=4, epsilon=1e-05,
    ),
    case(
        "group_norm_grad", "dy_0: 4 8 4, x_0: 4 8 4, mean_0: 4 1, inv_variance_0: 4 1 -> "
        "dx_0: 4 8 4", num_groups=1, epsilon=1e-05,
    ),
    case(
        "group_norm_param_grad", "dy_0: 4 8 12, x_0: 4 8 12, mean_0: 4 4, inv_variance_0: 4 4 -> "
        "dgamma_0: 8, dbeta_0: 8",
    ),
    case(
        "group_norm_param_grad", "dy_0: 4 8 4 6, x_0: 4 8 4 6, mean_0: 4 1, inv_variance_0: 4 1 -> "
        "dgamma_0: 8, dbeta_0: 8",
    ),
    case(
        "matmul", "_add_to_output_0: 8 4, a_0: 8 12, b_0: 12 4 -> out_0: 8 4",
        **_PRODUCT | {"transpose_b": False},
    ),
    case("batch_matmul", "a_0: 4 8 6, b_0: 4 4 6, _add_to_output_0: 4 8 4 -> out_0: 4 8 4", **_PRODUCT),
    case("broadcast_matmul", "a_0: 4 8 6, b_0: 4 6, _add_to_output_0: 4 8 4 -> out_0: 4 8 4", **_PRODUCT),
    case(
        "broadcast_matmul_grad_b", "_add_to_output_0: 12 4, a_0: 4 8 12, b_0: 4 8 4 -> out_0: 12 4",
        alpha=1.0,
    ),
    case("fused_matmul_bias", "x_0: 4 8 12, weight_0: 16 12, bias_0: 16 -> out_0: 4 8 16"),
    case(
        "fused_matmul_bias", "x_0: 8 12, weight_0: 4 12, bias_0: 4, _add_to_output_0: 8 4 -> "
        "out_0: 8 4",
    ),
    case("cublas_fused_mlp", _LAYERS, skip_final_activation=False),
    case("cublas_fused_mlp", _LAYERS, skip_final_activation=True),
    case(
        "cublas_bias_add_relu_matmul_grad", "dy_0: 8 4, weight_0: 4 12, aux_0: 8 4 -> "
        "d_grad_0: 8 12, d_bias_0: 12", alpha=1.0,
    ),
    case(
        "cublas_fused_mlp_grad", "dy_0: 8 4, x_0: 8 16, weights_0: 12 16, weights_1: 4 12, "
        "cublas_aux_0: 8 4, cublas_aux_1: 8 4, hidden_0: 8 12, hidden_1: 8 4 -> d_x_0: 8 16, "
        "d_biases_0: 12, d_biases_1: 4, d_weights_0: 12 16, d_weights_1: 4 12", alpha_list=(1.0,),
    ),
    case(
        "fused_matmul_bias_add_relu_dropout", _LAYERS, skip_final_activation=False,
        dropout_rate_list=(0.10000000149011612, 0.20000000298023224, 0.0),
    ),
    case("fused_relu_dropout_grad", "dy_0: 8 12, mask_0: 8 4 -> dx_0: 8 12", scale=1.25),
    case("fused_scale_mask_softmax", "x_0: 4 8 4 6, mask_0: 4 1 4 6 -> y_0: 4 8 4 6", **_SOFTMAX),
    case(
        "fused_scale_mask_softmax_grad", "y_0: 4 8 4 6, dy_0: 4 8 4 6, mask_0: 4 1 4 6 -> "
        "dx_0: 4 8 4 6", scale_value=0.5,
    ),
    case(
        "fused_scale_mask_softmax_dropout", "x_0: 4 4 6, mask_0: 1 4 6, dropout_mask_0: 4 4 6 -> "
        "y_0: 4 4 6, softmax_y_0: 4 4 6", **_SOFTMAX, **_DROPOUT,
    ),
    case(
        "fused_scale_mask_softmax_dropout_grad", "softmax_y_0: 4 4 6, dy_0: 4 4 6, mask_0: 4 1 6, "
        "dropout_mask_0: 4 4 6 -> dx_0: 4 4 6", scale_value=0.5, **_DROPOUT,
    ),
    case(
        "fused_bias_add_scale_mask_softmax_dropout", "x_0: 4 4 6, bias_0: 4 6, mask_0: 4 1 6, "
        "dropout_mask_0: 4 4 6 -> y_0: 4 4 6, softmax_y_0: 4 4 6", **_SOFTMAX, **_DROPOUT,
    ),
    case(
        "fused_tril_scale_softmax_mask_scale", "x_0: 4 4 6, mask_0: 4 4 6 -> y_0: 4 4 6, "
        "softmax_y_0: 4 4 6", tril_fill_value=-10000.0, **_TRIL,
    ),
    case(
        "fused_tril_scale_softmax_mask_scale_grad", "softmax_y_0: 4 4 6, dy_0: 4 4 6, "
        "mask_0: 4 4 6 -> dx_0: 4 4 6", **_TRIL,
    ),
    case("fused_scale_tril", "in_0: 4 8 12 -> out_0: 4 8 12", **_scale_tril(0, 0.0, 0.5)),
    case("fused_scale_tril", "in_0: 4 8 12 -> out_0: 4 8 12", **_scale_tril(1, -5, 2)),
    case(
        "fused_self_attention_query_mul_key_and_value", "hidden_states_0: 3 4 48 -> "
        "query_mul_key_0: 4 8 3 3, value_0: 4 8 3 2", head_size=2, alpha=0.5,
    ),
    case(
        "fused_self_attention_query_mul_key_and_value_grad", "query_mul_key_grad_0: 4 4 3 3, "
        "value_grad_0: 4 4 3 2, hidden_states_0: 3 4 24 -> hidden_states_grad_0: 3 4 24",
        alpha=0.5,
    ),
    case(
        "fused_multi_head_attention_inference", "query_0: 4 8 6, key_0: 4 8 6, value_0: 4 8 9 -> "
        "out_0: 4 8 9", num_heads=3, causal=True, **_INFERENCE,
    ),
    case(
        "fused_dot_feature_interaction", "features_0: 4 1 8, features_1: 4 5 8, "
        "output_concat_0: 4 8 -> out_0: 4 24", output_padding=1, has_output_concat=True, **_DOTS,
    ),
    case(
        "fused_dot_feature_interaction", "features_0: 4 3 8 -> out_0: 4 6", output_padding=0,
        has_output_concat=False, **_DOTS | {"self_interaction": True},
    ),
    case(
        "fused_dot_feature_interaction", "features_0: 4 1 8, features_1: 4 5 8 -> out_0: 4 8",
        output_padding=0, has_output_concat=False, **_DOTS | {"pooling": "sum"},
    ),
    case(
        "fused_dot_feature_interaction_grad", "dy_0: 4 24, features_0: 4 1 8, features_1: 4 5 8 -> "
        "features_grad_0: 4 1 8, features_grad_1: 4 5 8, output_concat_grad_0: 4 8",
        output_concat_grad_dim=8, **_DOTS,
    ),
    case(
        "fused_dot_feature_interaction_grad", "dy_0: 4 8, features_0: 4 6 8 -> "
        "features_grad_0: 4 6 8", output_concat_grad_dim=0, **_DOTS | {"pooling": "sum"},
    ),
    case("fused_bias_add_gelu", "a_0: 4 6 8, b_0: 8 -> out_0: 4 6 8", axis=2),
    case("fused_bias_add_gelu_grad", "a_0: 4 8, b_0: 8, dy_0: 4 8 -> dx_0: 4 8", axis=1),
    case("fused_bias_add_gelu_grad", "a_0: 4 6 8, b_0: 6, dy_0: 4 6 8 -> dx_0: 4 6 8", axis=1),
    case(
        "fused_bias_add_mask_scale", "a_0: 4 8, b_0: 8, mask_0: 4 8 -> out_0: 4 8", axis=1,
        scale=1.1111111640930176,
    ),
    case(
        "fused_bias_add_mask_scale", "a_0: 4 8, b_0: 8, mask_0: 4 8, _add_to_output_0: 4 8 -> "
        "out_0: 4 8", axis=1, scale=1.1111111640930176,
    ),
    case("fused_fast_gelu_mul", "in_0: 4 8, multiplier_0: 4 8 -> out_0: 4 8"),
    case(
        "fused_fast_gelu_mul_grad", "out_diff_0: 4 8, in_0: 4 8, multiplier_0: 4 8 -> "
        "in_diff_0: 4 8, multiplier_diff_0: 4 8",
    ),
    case(
        "fused_weighted_sum", "in_0: 4 8, in_1: 4 8 -> out_0: 4 8", weights=(0.5, 0.25), alpha=2.0
    ),
    case("dropout", "in_0: 4 8 -> out_0: 4 8, mask_0: 4 8", rate=0.10000000149011612),
    case(
        "dropout", "in_0: 4 8, _add_to_output_0: 4 8 -> out_0: 4 8, mask_0: 4 8",
        rate=0.10000000149011612,
    ),
    case("random_mask_like", "like_0: 4 8 -> out_0: 4 8", **_SEED),
    case("dropout_grad", "dy_0: 4 8, mask_0: 4 8 -> dx_0: 4 8", scale=1.1111111640930176),
    case(
        "normalization_add_relu", "x_0: 4 8 2 4, addend_0: 4 8 2 4, moving_mean_0: 8, "
        "moving_variance_0: 8, gamma_0: 8, beta_0: 8 -> y_0: 4 8 2 4, reserve_space_0: 8, "
        "mean_0: 8, inv_variance_0: 8", training=True, momentum=0.9, **_BATCHNORM,
    ),
    case(
        "normalization_add_relu", "x_0: 1 8 4 8, addend_0: 1 8 4 8, moving_mean_0: 8, "
        "moving_variance_0: 8, gamma_0: 8, beta_0: 8 -> y_0: 1 8 4 8, reserve_space_0: 8, "
        "mean_0: 8, inv_variance_0: 8", training=True, momentum=0.9, **_BATCHNORM,
    ),
    case(
        "normalization_add_relu_grad", "x_0: 4 8 2 4, dy_0: 4 8 2 4, mean_0: 8, "
        "inv_variance_0: 8, gamma_0: 8, beta_0: 8, reserve_space_0: 8, y_0: 4 8 2 4 -> "
        "dx_0: 4 8 2 4, gamma_diff_0: 8, beta_diff_0: 8, addend_diff_0: 4 8 2 4", **_BATCHNORM,
    ),
    case(
        "normalization_add_relu_grad", "x_0: 1 8 4 8, dy_0: 1 8 4 8, mean_0: 8, "
        "inv_variance_0: 8, gamma_0: 8, beta_0: 8, reserve_space_0: 8, y_0: 1 8 4 8 -> "
        "dx_0: 1 8 4 8, gamma_diff_0: 8, beta_diff_0: 8", **_BATCHNORM,
    ),
    case("amp_white_identity", "in_0: 4 8 -> out_0: 4 8"),
    case("amp_black_identity", "in_0: 4 8 -> out_0: 4 8"),
    case("fused_cast_scale", "x_0: 4 8, scale_by_tensor_0: 1 -> y_0: 4 8", scale=1.0),
    case("scalar_mul_by_tensor", "x_0: 4 8, scalar_0: 1 -> y_0: 4 8"),
    case("count_not_finite", "x_0: 4 8 -> y_0: 1"),
    case("multi_count_not_finite", "x_0: 8, x_1: 12 -> y_0: 1"),
    case("multi_count_not_finite", "x_0: 4 8, x_1: 8 4 4, x_2: 4 12 -> y_0: 1"),
    case(
        "dynamic_loss_scale_schedule", "count_not_finite_0: 1, loss_scale_0: 1, "
        "good_step_counter_0: 1 ->", increment_period=2000, multiplier=2.0,
    ),
    case("assign_if", "ref_0: 4 8, value_0: 4 8, condition_0: 1 ->"),
    case("assign_if_not", "ref_0: 4 8, value_0: 4 8, condition_0: 1 ->"),
)  # fmt: skip
