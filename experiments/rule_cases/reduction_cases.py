"""Sums, softmaxes, variances, look-ups and losses."""

from __future__ import annotations

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case

CASES: tuple[OpView, ...] = (
    case(
        "reduce_sum", "input_tensor_0: 4 8 12 -> output_tensor_0: 4 1 12", axis=(1,), keepdims=True
    ),
    case(
        "reduce_sum", "input_tensor_0: 4 8 4 4 -> output_tensor_0: 8", axis=(0, 2, 3),
        keepdims=False,
    ),
    case("reduce_sum", "input_tensor_0: 4 8 -> output_tensor_0:", axis=(0, 1), keepdims=False),
    *(
        case(name, shapes, axis=axis, keepdims=keepdims)
        for name in ("reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all")
        for shapes, axis, keepdims in (
            ("input_tensor_0: 4 8 12 -> output_tensor_0: 4 8 1", (2,), True),
            ("input_tensor_0: 4 8 12 -> output_tensor_0: 8", (0, 2), False),
        )
    ),
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
)  # fmt: skip
