"""Cases of routing, indexing, pointwise_loss and softmax_loss."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case


def _one_hot(dtype: int) -> dict[str, Any]:
    return {
        "depth": 12, "dtype": dtype, "floating_on_value": 1.5, "floating_off_value": -0.5,
        "integer_on_value": 1, "integer_off_value": 0,
    }  # fmt: skip


def _embedding(padding: int, by_frequency: bool = False) -> dict[str, Any]:
    return {"padding_idx": padding, "scale_grad_by_freq": by_frequency}


_MEAN = "binary_cross_entropy_with_logits_reduce_mean"
_PAIR = "input_0: 4 8, target_0: 4 8 -> out_0: 4 8"
_SLOPE = "dy_0: 4 8, input_0: 4 8, target_0: 4 8 -> dx_0: 4 8"
_LOSSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("binary_cross_entropy_with_logits", {"has_pos_weight": False}),
    ("binary_cross_entropy", {}),
    ("smooth_l1_loss", {"beta": 0.5}),
    ("smooth_l1_loss", {"beta": 0.0}),
    ("kl_div_loss", {"log_target": False}),
    ("kl_div_loss", {"log_target": True}),
)

CASES: tuple[OpView, ...] = (
    case("argmax", "in_0: 4 8 12 -> out_0: 4 8"),
    case("argmax", "in_0: 8 -> out_0:"),
    case("top_k", "in_0: 4 8 12 -> out_0: 4 8 4", k=4, sorted=True),
    case("arg_sort", "in_0: 8 12 -> out_0: 8 12", direction="ASCENDING"),
    case("arg_sort", "in_0: 4 8 4 -> out_0: 4 8 4", direction="DESCENDING"),
    case("in_top_k", "predictions_0: 8 12, targets_0: 8 -> out_0: 8", k=4),
    case("one_hot", "indices_0: 4 8 -> out_0: 4 8 12", **_one_hot(2)),
    case("one_hot", "indices_0: 8 -> out_0: 8 12", **_one_hot(6)),
    case("cumsum", "x_0: 4 8 12 -> y_0: 4 8 12", dim=1),
    case("cumsum", "x_0: 8 4 -> y_0: 8 4", dim=0),
    case("flip", "x_0: 4 8 12 -> y_0: 4 8 12", dims=(1,)),
    case("flip", "x_0: 4 8 -> y_0: 4 8", dims=(0, -1)),
    case("dim_gather", "index_0: 8 4, input_0: 8 12 -> output_0: 8 4", dim=1),
    case("dim_gather", "index_0: 8 4 4, input_0: 12 4 8 -> output_0: 8 4 4", dim=0),
    case(
        "dim_scatter_add_like",
        "index_0: 8 4, like_0: 8 12, src_0: 8 4 -> output_0: 8 12", dim=1,
    ),
    case(
        "dim_scatter_add_like",
        "index_0: 8 4 4, like_0: 12 4 8, src_0: 8 4 4 -> output_0: 12 4 8", dim=0,
    ),
    case("gather_nd", "indices_0: 4 8 2, params_0: 8 12 4 -> out_0: 4 8 4"),
    case("gather_nd", "indices_0: 8 1, params_0: 12 4 -> out_0: 8 4"),
    case("gather_nd", "indices_0: 8 2, params_0: 12 4 -> out_0: 8"),
    case("scatter_nd", "indices_0: 4 8 2, updates_0: 4 8 4 -> out_0: 8 12 4", shape=(8, 12, 4)),
    case("scatter_nd", "indices_0: 8 1, updates_0: 8 4 -> out_0: 12 4", shape=(12, 4)),
    case("scatter_nd_like", "indices_0: 8 1, like_0: 12 4, updates_0: 8 4 -> out_0: 12 4"),
    case("scatter_nd_like", "indices_0: 8 2, like_0: 12 4, updates_0: 8 -> out_0: 12 4"),
    case("batch_gather", "in_0: 4 12 8, indices_0: 4 8 -> out_0: 4 8 8"),
    case(
        "unsorted_batch_segment_sum", "data_0: 4 8 8, segment_ids_0: 4 8 -> out_0: 4 12 8",
        num_segments=12,
    ),
    case("embedding", "indices_0: 4 8, weight_0: 16 4 -> out_0: 4 8 4", **_embedding(1)),
    case("embedding", "indices_0: 8, weight_0: 16 4 -> out_0: 8 4", **_embedding(-1, True)),
    *(
        case(
            "embedding_grad",
            "dy_0: 4 8 12, indices_0: 4 8, weight_0: 16 12 -> dx_0: 16 12", **options,
        )
        for options in (_embedding(1), _embedding(-1), _embedding(3, True))
    ),
    *(case(name, _PAIR, **attrs) for name, attrs in _LOSSES),
    *(case(f"{name}_grad", _SLOPE, **attrs) for name, attrs in _LOSSES),
    case(
        "binary_cross_entropy",
        "input_0: 4 8, target_0: 4 8, weight_0: 4 8 -> out_0: 4 8",
    ),
    case(
        "binary_cross_entropy_with_logits",
        "input_0: 4 8, pos_weight_0: 8, target_0: 4 8, weight_0: 4 8 -> out_0: 4 8",
        has_pos_weight=True,
    ),
    case(
        "binary_cross_entropy_with_logits",
        "input_0: 8, pos_weight_0: 8, target_0: 8 -> out_0: 8", has_pos_weight=True,
    ),
    case(
        "binary_cross_entropy_with_logits_grad",
        "dy_0: 4 8, input_0: 4 8, pos_weight_0: 8, target_0: 4 8, weight_0: 4 8 -> dx_0: 4 8",
        has_pos_weight=True,
    ),
    case(_MEAN, "input_0: 4 8, target_0: 4 8 -> out_0:"),
    case(f"{_MEAN}_grad", "dy_0:, input_0: 4 8, target_0: 4 8 -> dx_0: 4 8"),
    case(
        "sparse_softmax_cross_entropy",
        "label_0: 8, prediction_0: 8 12 -> out_0: 8, prob_0: 8 12", depth=12,
    ),
    case(
        "sparse_softmax_cross_entropy_grad",
        "dy_0: 8, label_0: 8, prob_0: 8 12 -> prediction_diff_0: 8 12", depth=12,
    ),
    case(
        "softmax_cross_entropy",
        "label_0: 8 12, prediction_0: 8 12 -> out_0: 8, prob_0: 8 12",
    ),
    case(
        "softmax_cross_entropy_grad",
        "dy_0: 8, label_0: 8 12, prob_0: 8 12 -> prediction_diff_0: 8 12",
    ),
)  # fmt: skip
