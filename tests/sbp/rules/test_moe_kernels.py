"""References of routing, indexing and losses against OneFlow's own CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases import case_id
from experiments.rule_cases.routing_cases import CASES
from tests.sbp.rules.test_moe_references import RENAMED, Arrays, drawn, forward_of, is_gradient, run

Tensors = dict[str, Any]


def kernel(view: OpView) -> Callable[[Any, Tensors], Any] | None:
    """Return what runs the op in OneFlow, given the module and its inputs."""
    a = view.attr
    mean = "binary_cross_entropy_with_logits_reduce_mean"
    return {
        "argmax": lambda f, t: f.argmax(t["in_0"], dim=-1),
        "top_k": lambda f, t: f.topk(t["in_0"], a["k"])[1],
        "arg_sort": lambda f, t: f.argsort(
            t["in_0"], dim=-1, descending=a["direction"] == "DESCENDING"
        ),
        "in_top_k": lambda f, t: f.in_top_k(t["targets_0"], t["predictions_0"], a["k"]),
        "one_hot": lambda f, t: f._C.one_hot(
            t["indices_0"], num_classes=a["depth"],
            on_value=a["floating_on_value"] if a["dtype"] == 2 else a["integer_on_value"],
            off_value=a["floating_off_value"] if a["dtype"] == 2 else a["integer_off_value"],
        ),
        "cumsum": lambda f, t: f.cumsum(t["x_0"], a["dim"]),
        "flip": lambda f, t: f.flip(t["x_0"], list(a["dims"])),
        "dim_gather": lambda f, t: f.gather(t["input_0"], a["dim"], t["index_0"]),
        "gather_nd": lambda f, t: f.gather_nd(t["params_0"], t["indices_0"]),
        "scatter_nd": lambda f, t: f.scatter_nd(t["indices_0"], t["updates_0"], list(a["shape"])),
        "batch_gather": lambda f, t: f._C.batch_gather(t["in_0"], t["indices_0"]),
        "embedding": lambda f, t: f.nn.functional.embedding(
            t["indices_0"], t["weight_0"],
            padding_idx=a["padding_idx"] if a["padding_idx"] >= 0 else None,
            scale_grad_by_freq=a["scale_grad_by_freq"],
        ),
        "binary_cross_entropy_with_logits": lambda f, t: (
            f.nn.functional.binary_cross_entropy_with_logits(
                t["input_0"], t["target_0"], t.get("weight_0"), t.get("pos_weight_0"), "none"
            )
        ),
        mean: lambda f, t: f.nn.functional.binary_cross_entropy_with_logits(
            t["input_0"], t["target_0"], None, None, "mean"
        ),
        "binary_cross_entropy": lambda f, t: f.nn.functional.binary_cross_entropy(
            t["input_0"], t["target_0"], t.get("weight_0"), "none"
        ),
        "smooth_l1_loss": lambda f, t: f._C.smooth_l1_loss(
            t["input_0"], t["target_0"], a["beta"], "none"
        ),
        "kl_div_loss": lambda f, t: f._C.kl_div_loss(
            t["input_0"], t["target_0"], a["log_target"], "none"
        ),
        "sparse_softmax_cross_entropy": lambda f, t: f._C.sparse_softmax_cross_entropy(
            t["prediction_0"], t["label_0"]
        ),
        "softmax_cross_entropy": lambda f, t: f._C.softmax_cross_entropy(
            t["prediction_0"], t["label_0"]
        ),
    }.get(view.type)  # fmt: skip


def tensors(flow: Any, inputs: Arrays) -> Tensors:
    return {
        name: flow.tensor(array.astype(np.int64 if array.dtype.kind == "i" else np.float32))
        for name, array in inputs.items()
    }


def close(got: Any, expected: np.ndarray) -> None:
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.oneflow
@pytest.mark.parametrize("view", [v for v in CASES if kernel(v) is not None], ids=case_id)
def test_references_equal_the_kernels(view: OpView) -> None:
    import oneflow as flow

    inputs, results = drawn(view)
    run_kernel = kernel(view)
    assert run_kernel is not None
    close(run_kernel(flow, tensors(flow, inputs)), results[view.outputs[0]])


@pytest.mark.oneflow
@pytest.mark.parametrize("view", [v for v in CASES if is_gradient(v)], ids=case_id)
def test_gradients_equal_the_kernels(view: OpView) -> None:
    """Differentiate the forward kernel in OneFlow."""
    import oneflow as flow

    forward, wanted, dy_name = forward_of(view)
    inputs, results = drawn(forward)
    run_kernel = kernel(forward)
    assert run_kernel is not None
    given = tensors(flow, inputs)
    given[wanted].requires_grad = True
    out = run_kernel(flow, given)
    dy = np.random.default_rng(6).normal(size=view.shape[dy_name])
    out.backward(flow.tensor(dy.astype(np.float32)))
    known = {**inputs, **results, dy_name: dy, "like_0": inputs[wanted]}
    known |= {old: inputs[new] for old, new in RENAMED.items() if new in inputs}
    expected = run(view, {name: known[name] for name in view.inputs})[view.outputs[0]]
    close(given[wanted].grad, expected)
