"""What has no micro-batches, and what the error says of it."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.errors import AutoDDLError, RuleError
from autoddl.sbp.rewrites.micro_batch import micro_batch
from tests.sbp.rewrites.test_micro_batch import constant, forward_only
from tests.support.programs import Builder, mlp, reshape, scaled, transpose


@pytest.mark.parametrize("count", [0, -2, 2.0, True, "2"])
def test_counts_that_are_none(count: Any) -> None:
    with pytest.raises(AutoDDLError, match=r"micro-batches .*: give a whole number of at least 1"):
        micro_batch(mlp(8), count)


def test_batches_that_do_not_divide() -> None:
    with pytest.raises(
        AutoDDLError, match=r"input.0.0: dim 0 of \(12, 16\) .* all inputs: 1, 2, 3, 4, 6, 12$"
    ):
        micro_batch(mlp(12), 5)


def test_inputs_that_have_no_batch() -> None:
    g = Builder()
    x = scaled(g, g.input((4, 2)), 2.0)
    g.input(())
    with pytest.raises(AutoDDLError, match=r"input.0.1: a scalar has no dim 0"):
        micro_batch(forward_only(g, x), 2)
    empty = Builder()
    ones = empty.op("constant", "-> out_0", [], (4,), shape=(4,), **constant(1.0))
    with pytest.raises(AutoDDLError, match="no inputs to cut; use 1 micro-batch"):
        micro_batch(forward_only(empty, ones), 2)


def test_ops_that_need_the_whole_batch() -> None:
    g = Builder()
    x = g.input((4, 6))
    y = g.op("cumsum", "x_0 -> y_0", [x], (4, 6), dim=0)
    with pytest.raises(
        AutoDDLError,
        match=r"cumsum-0 \(cumsum\): 2 micro-batches would cut x_0 \(4, 6\) along dim 0: it can't .*"
        "use 1 micro-batch",
    ):
        micro_batch(forward_only(g, y), 2)


def test_cuts_that_a_reshape_takes_apart() -> None:
    g = Builder()
    y = reshape(g, transpose(g, g.input((6, 4)), (1, 0)), (8, 3))
    with pytest.raises(AutoDDLError, match=r"reshape.*\(4, 6\) along dim 1.*a dim of its own"):
        micro_batch(forward_only(g, y), 3)


def test_cuts_in_strides_do_not_mix_with_others() -> None:
    g = Builder()
    y = reshape(g, transpose(g, g.input((4, 6)), (1, 0)), (24,))
    z = g.op("add_n", "in_0 in_1 -> out_0", [y, g.input((24,))], (24,))
    with pytest.raises(AutoDDLError, match=r"add_n.*in_0 \(24,\) along dim 0, in_1"):
        micro_batch(forward_only(g, z), 2)


def test_cuts_in_strides_do_not_follow_other_shapes() -> None:
    g = Builder()
    like = g.parameter("like", (24,))
    y = transpose(g, g.input((4, 6)), (1, 0))
    z = g.op("reshape_like", "in_0 like_0 -> out_0", [y, like], (24,))
    with pytest.raises(AutoDDLError, match=r"reshape_like.*in_0 \(6, 4\) along dim 1"):
        micro_batch(forward_only(g, z), 2)


def test_whole_tensors_that_can_not_be_made_in_parts() -> None:
    g = Builder()
    x = g.input((4, 6))
    y = g.op("add_n", "in_0 in_1 -> out_0", [x, g.parameter("row", (4, 6))], (4, 6))
    with pytest.raises(AutoDDLError, match=r"add_n.*cut in_0 \(4, 6\) along dim 0"):
        micro_batch(forward_only(g, y), 2)


def test_unknown_ops() -> None:
    g = Builder()
    y = g.op("mystery", "x_0 -> y_0", [g.input((4, 6))], (4, 6))
    with pytest.raises(
        AutoDDLError, match=r"no rule for mystery; add one with autoddl\.register_rule"
    ):
        micro_batch(forward_only(g, y), 2)


def test_rules_that_fail() -> None:
    g = Builder()
    y = g.op("transpose", "input_0 -> output_0", [g.input((4, 6))], (6, 4))
    with pytest.raises(RuleError, match="rule of transpose: can't be used on op transpose-0"):
        micro_batch(forward_only(g, y), 2)
