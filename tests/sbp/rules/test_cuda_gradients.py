"""Gradients of ops that only graphs on GPUs have, against finite differences of the forward ops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case, case_id
from tests.sbp.rules.cuda_ops import drawn, first, run, without


@dataclass(frozen=True)
class Gradient:
    """A gradient op, its forward op, where its inputs come from and what its outputs are of.

    `origin` maps an input to an operand of the forward op, or to "d " and the forward output whose
    gradient it is; `of` maps an output to the forward input.
    """

    backward: OpView
    forward: OpView
    origin: dict[str, str]
    of: dict[str, str]


def same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_LN = first("layer_norm_grad", 2)
_STATISTICS = same("x_0", "mean_0", "inv_variance_0")
_MASKED = {"softmax_y_0": "softmax_y_0", "dy_0": "d y_0", **same("mask_0", "dropout_mask_0")}
_MLP_SAVED = same(
    "x_0", "weights_0", "weights_1", "hidden_0", "hidden_1", "cublas_aux_0", "cublas_aux_1"
)
_MLP = case(
    "cublas_fused_mlp", "x_0: 8 16, weights_0: 12 16, weights_1: 4 12, biases_0: 12, biases_1: 4 -> "
    "out_0: 8 4, cublas_aux_0: 8 4, cublas_aux_1: 8 4, hidden_0: 8 12, hidden_1: 8 4",
    skip_final_activation=True,
)  # fmt: skip
_NAR = first("normalization_add_relu")
_DOT_OF = {"features_grad_0": "features_0", "features_grad_1": "features_1"}

GRADIENTS = (
    Gradient(
        without(_LN, "_add_to_output_0"), first("layer_norm"),
        {"dy_0": "d y_0", "gamma_0": "gamma_0", **_STATISTICS}, {"dx_0": "x_0"},
    ),
    Gradient(
        first("layer_norm_grad", 1), first("layer_norm", 1), {"dy_0": "d y_0", **_STATISTICS},
        {"dx_0": "x_0"},
    ),
    Gradient(
        first("layer_norm_param_grad"), first("layer_norm"), {"dy_0": "d y_0", **_STATISTICS},
        {"gamma_diff_0": "gamma_0", "beta_diff_0": "beta_0"},
    ),
    Gradient(
        first("rms_norm_grad"), first("rms_norm"),
        {"dy_0": "d y_0", **same("x_0", "inv_rms_0", "weight_0")}, {"dx_0": "x_0"},
    ),
    Gradient(
        first("rms_norm_grad", 1), first("rms_norm", 1), {"dy_0": "d y_0", **same("x_0", "inv_rms_0")},
        {"dx_0": "x_0"},
    ),
    Gradient(
        first("rms_norm_param_grad"), first("rms_norm"),
        {"dy_0": "d y_0", **same("x_0", "inv_rms_0")}, {"weight_grad_0": "weight_0"},
    ),
    Gradient(
        case(
            "group_norm_grad", "dy_0: 4 8 4 3, x_0: 4 8 4 3, mean_0: 4 4, inv_variance_0: 4 4, "
            "gamma_0: 8 -> dx_0: 4 8 4 3", num_groups=4, epsilon=1e-05,
        ),
        first("group_norm"), {"dy_0": "d y_0", "gamma_0": "gamma_0", **_STATISTICS},
        {"dx_0": "x_0"},
    ),
    Gradient(
        case(
            "group_norm_param_grad", "dy_0: 4 8 4 3, x_0: 4 8 4 3, mean_0: 4 4, "
            "inv_variance_0: 4 4 -> dgamma_0: 8, dbeta_0: 8",
        ),
        first("group_norm"), {"dy_0": "d y_0", **_STATISTICS},
        {"dgamma_0": "gamma_0", "dbeta_0": "beta_0"},
    ),
    Gradient(
        first("cublas_fused_mlp_grad"), _MLP, {"dy_0": "d out_0", **_MLP_SAVED},
        {
            "d_x_0": "x_0", "d_weights_0": "weights_0", "d_weights_1": "weights_1",
            "d_biases_0": "biases_0", "d_biases_1": "biases_1",
        },
    ),
    Gradient(
        first("cublas_bias_add_relu_matmul_grad"), _MLP,
        {"dy_0": "d out_0", "weight_0": "weights_1", "aux_0": "cublas_aux_0"},
        {"d_bias_0": "biases_0"},
    ),
    Gradient(
        first("fused_scale_mask_softmax_grad"), first("fused_scale_mask_softmax"),
        {"y_0": "y_0", "dy_0": "d y_0", "mask_0": "mask_0"}, {"dx_0": "x_0"},
    ),
    Gradient(
        first("fused_scale_mask_softmax_dropout_grad"),
        replace(
            first("fused_scale_mask_softmax_dropout"),
            shape={**first("fused_scale_mask_softmax_dropout").shape, "mask_0": (4, 1, 6)},
        ),
        _MASKED, {"dx_0": "x_0"},
    ),
    Gradient(
        first("fused_scale_mask_softmax_dropout_grad"),
        first("fused_bias_add_scale_mask_softmax_dropout"), _MASKED, {"dx_0": "x_0"},
    ),
    Gradient(
        first("fused_tril_scale_softmax_mask_scale_grad"),
        first("fused_tril_scale_softmax_mask_scale"),
        {"softmax_y_0": "softmax_y_0", "dy_0": "d y_0", "mask_0": "mask_0"}, {"dx_0": "x_0"},
    ),
    Gradient(
        first("fused_scale_tril"), first("fused_scale_tril"), {"in_0": "d out_0"},
        {"out_0": "in_0"},
    ),
    Gradient(
        case(
            "fused_self_attention_query_mul_key_and_value_grad", "query_mul_key_grad_0: 4 8 3 3, "
            "value_grad_0: 4 8 3 2, hidden_states_0: 3 4 48 -> hidden_states_grad_0: 3 4 48",
            alpha=0.5,
        ),
        first("fused_self_attention_query_mul_key_and_value"),
        {
            "query_mul_key_grad_0": "d query_mul_key_0", "value_grad_0": "d value_0",
            "hidden_states_0": "hidden_states_0",
        },
        {"hidden_states_grad_0": "hidden_states_0"},
    ),
    Gradient(
        first("fused_dot_feature_interaction_grad"), first("fused_dot_feature_interaction"),
        {"dy_0": "d out_0", **same("features_0", "features_1")},
        {**_DOT_OF, "output_concat_grad_0": "output_concat_0"},
    ),
    Gradient(
        case(
            "fused_dot_feature_interaction_grad", "dy_0: 4 6, features_0: 4 3 8 -> "
            "features_grad_0: 4 3 8", output_concat_grad_dim=0, pooling="none",
            self_interaction=True,
        ),
        first("fused_dot_feature_interaction", 1), {"dy_0": "d out_0", **same("features_0")},
        {"features_grad_0": "features_0"},
    ),
    Gradient(
        case(
            "fused_dot_feature_interaction_grad", "dy_0: 4 8, features_0: 4 1 8, "
            "features_1: 4 5 8 -> features_grad_0: 4 1 8, features_grad_1: 4 5 8",
            output_concat_grad_dim=0, pooling="sum", self_interaction=False,
        ),
        first("fused_dot_feature_interaction", 2),
        {"dy_0": "d out_0", **same("features_0", "features_1")}, _DOT_OF,
    ),
    Gradient(
        case("fused_bias_add_gelu_grad", "a_0: 4 6 8, b_0: 8, dy_0: 4 6 8 -> dx_0: 4 6 8", axis=2),
        first("fused_bias_add_gelu"), {"dy_0": "d out_0", **same("a_0", "b_0")}, {"dx_0": "a_0"},
    ),
    Gradient(
        first("fused_fast_gelu_mul_grad"), first("fused_fast_gelu_mul"),
        {"out_diff_0": "d out_0", **same("in_0", "multiplier_0")},
        {"in_diff_0": "in_0", "multiplier_diff_0": "multiplier_0"},
    ),
    Gradient(
        first("dropout_grad"), replace(first("dropout"), attr={"rate": 0.1}),
        {"dy_0": "d out_0", "mask_0": "mask_0"}, {"dx_0": "in_0"},
    ),
    Gradient(
        first("normalization_add_relu_grad"), _NAR,
        {"dy_0": "d y_0", "y_0": "y_0", "reserve_space_0": "reserve_space_0",
         **same("gamma_0", "beta_0"), **_STATISTICS},
        {"dx_0": "x_0", "gamma_diff_0": "gamma_0", "beta_diff_0": "beta_0",
         "addend_diff_0": "addend_0"},
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", GRADIENTS, ids=lambda row: case_id(row.backward))
def test_gradients_are_derivatives(row: Gradient) -> None:
    """Compare sum <dy, f(x + hv) - f(x - hv)> / 2h over the outputs with <dx, v>."""
    inputs, results = drawn(row.forward)
    rng = np.random.default_rng(6)
    named = [source[2:] for source in row.origin.values() if source.startswith("d ")]
    dys = {f"d {name}": rng.normal(size=row.forward.shape[name]) for name in named}
    known = {**inputs, **results, **dys}
    gradients = run(row.backward, {name: known[source] for name, source in row.origin.items()})
    h = 1e-6
    for output, wanted in row.of.items():
        v = rng.normal(size=inputs[wanted].shape)
        up, down = (
            run(row.forward, {**inputs, wanted: inputs[wanted] + s * h * v}) for s in (1, -1)
        )
        change = sum(np.sum(dys[f"d {n}"] * (up[n] - down[n])) for n in named) / (2 * h)
        assert np.sum(gradients[output] * v) == pytest.approx(change, rel=1e-5, abs=1e-7), output
