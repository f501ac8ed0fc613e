"""Cases of routing, indexing, pointwise_loss and softmax_loss."""

from __future__ import annotations

from typing import Any

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case, each


def _one_hot(dtype: int) -> dict[str, Any]:
    return {
        "depth": 12, "dtype": dtype, "floating_on_value": 1.5, "floating_off_value": -0.5,
        "integer_on_value": 1, "integer_off_value": 0,
    }  # fmt: skip


def _embedding(padding: int, by_frequency: bool = False) -> dict[str, Any]:
    return {"padding_idx": padding, "scale_grad_by_freq": by_frequency}


_LOGITS = "binary_cross_entropy_with_logits"
_MEAN = f"{_LOGITS}_reduce_mean"
_PAIR = "input: 4 8, target: 4 8 -> out: 4 8"
_SLOPE = "dy: 4 8, input: 4 8, target: 4 8 -> dx: 4 8"
_LOSSES: tuple[tuple[str, dict[str, Any]], ...] = (
    (_LOGITS, {"has_pos_weight": False}),
    ("binary_cross_entropy", {}),
    ("smooth_l1_loss", {"beta": 0.5}),
    ("smooth_l1_loss", {"beta": 0.0}),
    ("kl_div_loss", {"log_target": False}),
    ("kl_div_loss", {"log_target": True}),
)

CASES: tuple[OpView, ...] = (
    *each("argmax", "in: 4 8 12 -> out: 4 8", "in: 8 -> out:"),
    case("top_k", "in: 4 8 12 -> out: 4 8 4", k=4, sorted=True),
    case("arg_sort", "in: 8 12 -> out: 8 12", direction="ASCENDING"),
    case("arg_sort", "in: 4 8 4 -> out: 4 8 4", direction="DESCENDING"),
    case("in_top_k", "predictions: 8 12, targets: 8 -> out: 8", k=4),
    case("one_hot", "indices: 4 8 -> out: 4 8 12", **_one_hot(2)),
    case("one_hot", "indices: 8 -> out: 8 12", **_one_hot(6)),
    case("cumsum", "x: 4 8 12 -> y: 4 8 12", dim=1),
    case("cumsum", "x: 8 4 -> y: 8 4", dim=0),
    case("flip", "x: 4 8 12 -> y: 4 8 12", dims=(1,)),
    case("flip", "x: 4 8 -> y: 4 8", dims=(0, -1)),
    case("dim_gather", "index: 8 4, input: 8 12 -> output: 8 4", dim=1),
    case("dim_gather", "index: 8 4 4, input: 12 4 8 -> output: 8 4 4", dim=0),
    case("dim_scatter_add_like", "index: 8 4, like: 8 12, src: 8 4 -> output: 8 12", dim=1),
    case("dim_scatter_add_like", "index: 8 4 4, like: 12 4 8, src: 8 4 4 -> output: 12 4 8", dim=0),
    *each("gather_nd", "indices: 4 8 2, params: 8 12 4 -> out: 4 8 4",
          "indices: 8 1, params: 12 4 -> out: 8 4", "indices: 8 2, params: 12 4 -> out: 8"),
    case("scatter_nd", "indices: 4 8 2, updates: 4 8 4 -> out: 8 12 4", shape=(8, 12, 4)),
    case("scatter_nd", "indices: 8 1, updates: 8 4 -> out: 12 4", shape=(12, 4)),
    *each("scatter_nd_like", "indices: 8 1, like: 12 4, updates: 8 4 -> out: 12 4",
          "indices: 8 2, like: 12 4, updates: 8 -> out: 12 4"),
    case("batch_gather", "in: 4 12 8, indices: 4 8 -> out: 4 8 8"),
    case("unsorted_batch_segment_sum", "data: 4 8 8, segment_ids: 4 8 -> out: 4 12 8",
         num_segments=12),
    case("embedding", "indices: 4 8, weight: 16 4 -> out: 4 8 4", **_embedding(1)),
    case("embedding", "indices: 8, weight: 16 4 -> out: 8 4", **_embedding(-1, True)),
    *(
        case("embedding_grad", "dy: 4 8 12, indices: 4 8, weight: 16 12 -> dx: 16 12", **options)
        for options in (_embedding(1), _embedding(-1), _embedding(3, True))
    ),
    *(case(name, _PAIR, **attrs) for name, attrs in _LOSSES),
    *(case(f"{name}_grad", _SLOPE, **attrs) for name, attrs in _LOSSES),
    case("binary_cross_entropy", "input: 4 8, target: 4 8, weight: 4 8 -> out: 4 8"),
    *each(_LOGITS, "input: 4 8, pos_weight: 8, target: 4 8, weight: 4 8 -> out: 4 8",
          "input: 8, pos_weight: 8, target: 8 -> out: 8", has_pos_weight=True),
    case(f"{_LOGITS}_grad", "dy: 4 8, input: 4 8, pos_weight: 8, target: 4 8, weight: 4 8 -> dx: 4 8",
         has_pos_weight=True),
    case(_MEAN, "input: 4 8, target: 4 8 -> out:"),
    case(f"{_MEAN}_grad", "dy:, input: 4 8, target: 4 8 -> dx: 4 8"),
    case("sparse_softmax_cross_entropy", "label: 8, prediction: 8 12 -> out: 8, prob: 8 12",
         depth=12),
    case("sparse_softmax_cross_entropy_grad",
         "dy: 8, label: 8, prob: 8 12 -> prediction_diff: 8 12", depth=12),
    case("softmax_cross_entropy", "label: 8 12, prediction: 8 12 -> out: 8, prob: 8 12"),
    case("softmax_cross_entropy_grad", "dy: 8, label: 8 12, prob: 8 12 -> prediction_diff: 8 12"),
)  # fmt: skip
