"""Sums, softmaxes, variances, look-ups and losses."""

from __future__ import annotations

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case, each

_REDUCTIONS = "reduce_max reduce_min reduce_prod reduce_any reduce_all"

CASES: tuple[OpView, ...] = (
    case("reduce_sum", "input_tensor: 4 8 12 -> output_tensor: 4 1 12", axis=(1,), keepdims=True),
    case("reduce_sum", "input_tensor: 4 8 4 4 -> output_tensor: 8", axis=(0, 2, 3), keepdims=False),
    case("reduce_sum", "input_tensor: 4 8 -> output_tensor:", axis=(0, 1), keepdims=False),
    *each(_REDUCTIONS, "input_tensor: 4 8 12 -> output_tensor: 4 8 1", axis=(2,), keepdims=True),
    *each(_REDUCTIONS, "input_tensor: 4 8 12 -> output_tensor: 8", axis=(0, 2), keepdims=False),
    case("reduce_sum_like", "x: 4 8 12, like: 12 -> y: 12", axis=(0, 1)),
    case("reduce_sum_like", "x: 4 8 12, like: 4 8 1 -> y: 4 8 1", axis=(2,)),
    case("reduce_sum_like", "x: 4 8 12, like: 8 1 -> y: 8 1", axis=(0, 2)),
    case("reduce_sum_like", "x: 4 8 12, like: 4 -> y: 4", axis=(1, 2)),
    case("reduce_sum_like", "x: 4 8, like: -> y:", axis=(0, 1)),
    case("square_sum", "x: 4 8 -> y: 1"),
    case("multi_square_sum", "x: 4 8, x_1: 8 4 12, x_2: 4 8 -> y: 1"),
    case("sqrt_square_sum", "x: 4 8 -> y:"),
    case("softmax", "in: 4 8 12 -> out: 4 8 12"),
    case("softmax_grad", "y: 4 8 12, dy: 4 8 12 -> dx: 4 8 12"),
    case("log_softmax", "in: 8 12 -> prob: 8 12"),
    case("log_softmax_grad", "prob: 8 12, dy: 8 12 -> dx: 8 12"),
    case("var", "input: 4 8 12 -> output: 4 8 1", dim=(2,), unbiased=False, keepdim=True),
    case("var", "input: 4 8 12 -> output: 4 12", dim=(1,), unbiased=True, keepdim=False),
    case("gather", "in: 16 4, indices: 4 8 -> out: 4 8 4", axis=0),
    case("gather", "in: 4 16 8, indices: 4 -> out: 4 4 8", axis=1),
    case("unsorted_segment_sum_like", "data: 4 8 4, segment_ids: 4 8, like: 16 4 -> out: 16 4",
         axis=0),
    case("unsorted_segment_sum_like", "data: 4 12 8, segment_ids: 12, like: 4 16 8 -> out: 4 16 8",
         axis=1),
    *each("nll", "input: 8 12, target: 8 -> output: 8, out_weight: 8",
          "input: 8 12, target: 8, weight: 12 -> output: 8, out_weight: 8", ignore_index=-100),
    case("nll_grad", "out_grad: 8, input: 8 12, target: 8 -> in_grad: 8 12", ignore_index=-100),
    case("nll_grad", "out_grad: 8, input: 8 12, target: 8, weight: 12 -> in_grad: 8 12",
         ignore_index=3),
)  # fmt: skip
