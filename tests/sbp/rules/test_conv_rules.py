"""Index maps of convolutions and batch normalisation: what may be cut, and what only looks so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoddl.errors import RuleError
from autoddl.sbp.numpy_oracle.simulated_ops import check_signature, run_op, sample_inputs
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.registry import Array, OpView, labelled
from autoddl.sbp.state import NdSbp, broadcast
from experiments.rule_cases.convolution_cases import CASES
from experiments.rule_cases.reading import case, case_id

BY_ID = {case_id(view): view for view in reversed(CASES)}
POINTS = BY_ID["conv2d[4x8x4x8-12x8x1x1]"]
PATCHES = BY_ID["conv2d[4x4x8x16-8x4x2x2]"]
DEPTHWISE = BY_ID["conv2d[4x4x5x6-8x1x3x3-8]"]
NORM = BY_ID["normalization[8-8-8-8-4x8x4x3]"]


def text(view: OpView, label: str, allow: frozenset[str] = frozenset()) -> str | None:
    signature = labelled(view, allow=allow).get(label)
    return signature and " ".join(str(signature[name]) for name in view.inputs + view.outputs)


def cuts(view: OpView) -> set[str]:
    return {label.removeprefix("cut ") for label in labelled(view) if label.startswith("cut ")}


def check(view: OpView, states: str, size: int = 2) -> str | None:
    parsed = map(NdSbp.parse, states.split())
    signature = dict(zip(view.inputs + view.outputs, parsed, strict=True))
    return check_signature(view, signature, (size,), np.random.default_rng(3))


def run(view: OpView, inputs: dict[str, Array]) -> dict[str, Array]:
    whole = dict.fromkeys(view.inputs + view.outputs, broadcast(1))
    results = run_op(view, whole, (1,), {name: [array] for name, array in inputs.items()})
    return {name: array for name, (array,) in results.items()}


def test_space_is_cut_where_windows_tile_the_image() -> None:
    assert cuts(POINTS) == cuts(PATCHES) == {"n", "c", "k", "s0", "s1"}
    assert text(PATCHES, "cut s1") == "S3 B S3"
    wide = case("conv2d", "in_0: 4 8 4 8, weight_0: 12 8 3 3 -> out_0: 4 12 4 8", **{
        **POINTS.attr, "kernel_size": (3, 3), "padding_before": (1, 1),
    })  # fmt: skip
    assert cuts(wide) == {"n", "c", "k"}
    assert "out_0 is" in str(check(wide, "S2 B S2"))
    odd = case("conv2d", "in_0: 4 4 10 16, weight_0: 8 4 2 2 -> out_0: 4 8 4 6", **{
        **PATCHES.attr, "strides": (2, 3), "kernel_size": (2, 1),
    })  # fmt: skip
    assert cuts(odd) == {"n", "c", "k"}  # rows and columns at the end are in no window


def test_groups_are_cut_whole() -> None:
    assert cuts(DEPTHWISE) == {"n", "g"}
    assert text(DEPTHWISE, "cut g") == "S1 S0 S0 S1"
    two = case("conv2d", "in_0: 4 8 5 6, weight_0: 8 4 3 3 -> out_0: 4 8 3 3", **{
        **DEPTHWISE.attr, "groups": 2,
    })  # fmt: skip
    assert cuts(two) == {"n"}
    assert check(two, "S1 S0 S1") is None  # right on 2 devices, but an index map has no number
    assert "whole groups of 4" in str(check(two, "S1 S0 S1", size=4))
    with pytest.raises(RuleError, match="6 channels for a filter of shape"):
        run_op(
            replace(two, shape={**two.shape, "in_0": (4, 6, 5, 6)}),
            dict.fromkeys(two.inputs + two.outputs, broadcast(1)), (1,),
            {"in_0": [np.ones((4, 6, 5, 6))], "weight_0": [np.ones((8, 4, 3, 3))]},
        )  # fmt: skip


def test_a_fused_bias_keeps_the_summed_channels_whole() -> None:
    view = case(
        "conv2d", "in_0: 4 8 4 8, weight_0: 12 8 1 1, bias_0: 12 -> out_0: 4 12 4 8", **POINTS.attr
    )
    assert cuts(view) == {"n", "k", "s0", "s1"}
    assert text(view, "cut k") == "B S0 S0 S1"
    assert {label for label in labelled(view) if label.startswith("P")} == {
        "P bias_0 in_0", "P bias_0 weight_0",
    }  # fmt: skip
    assert "out_0 is" in str(check(view, "S1 S1 B P"))
    added = replace(view, inputs=("_add_to_output_0", "in_0", "weight_0"))
    added = replace(added, shape={**view.shape, "_add_to_output_0": view.shape["out_0"]})
    assert text(added, "cut k") == "S1 B S0 S1"
    assert check(added, "S1 B S0 S1") is None


def test_layouts_agree() -> None:
    first = BY_ID["conv2d[4x8x4x8-12x8x1x1]"]
    inputs = sample_inputs(first, np.random.default_rng(4))
    shape = {"in_0": (4, 4, 8, 8), "weight_0": (12, 1, 1, 8), "out_0": (4, 4, 8, 12)}
    last = replace(first, shape=shape, attr={**first.attr, "data_format": "channels_last"})
    moved = {name: np.moveaxis(array, 1, -1) for name, array in inputs.items()}
    expected = np.moveaxis(run(first, inputs)["out_0"], 1, -1)
    np.testing.assert_allclose(run(last, moved)["out_0"], expected)
    assert text(last, "cut c") == "S3 S3 P"
    assert text(last, "cut k") == "B S0 S3"


def test_cutting_the_batch_of_a_batch_norm_takes_permission() -> None:
    allow = frozenset({"local_batchnorm"})
    assert cuts(NORM) == {"c"}
    assert text(NORM, "cut n") is None
    assert text(NORM, "cut n", allow) == "B B B* B* S0 B* B* S0"
    assert "y_0 is" in str(check(NORM, "B B B B S0 B B S0"))
    backward = BY_ID["normalization_grad[4x8x4x3-8-8-8-4x8x4x3]"]
    assert text(backward, "cut n", allow) == "S0 B B* B* S0 P S0 P"
    assert "dx_0 is" in str(check(backward, "S0 B B B S0 P S0 P"))
    evaluated = next(v for v in CASES if v.type == "normalization" and not v.attr["training"])
    assert cuts(evaluated) == {"n", "c", "s2", "s3"}


def test_batch_norm_by_hand() -> None:
    view = case(
        "normalization",
        "beta_0: 1, gamma_0: 1, moving_mean_0: 1, moving_variance_0: 1, x_0: 2 1 2 -> "
        "inv_variance_0: 1, mean_0: 1, y_0: 2 1 2",
        axis=1, epsilon=1.0, momentum=0.75, training=True,
    )  # fmt: skip
    x = np.array([[[0.0, 2.0]], [[4.0, 6.0]]])  # mean 3, variance 5, unbiased 20/3
    values = {"beta_0": 10.0, "gamma_0": 6.0, "moving_mean_0": 7.0, "moving_variance_0": 8.0}
    results = run(view, {name: np.array([v]) for name, v in values.items()} | {"x_0": x})
    np.testing.assert_allclose(results["y_0"], 10 + (x - 3) * np.sqrt(6))
    np.testing.assert_allclose(results["inv_variance_0"], 6**-0.5)
    np.testing.assert_allclose(results["moving_mean_0"], 0.75 * 7 + 0.25 * 3)
    np.testing.assert_allclose(results["moving_variance_0"], 0.75 * 8 + 0.25 * 20 / 3)


def test_flops_by_hand() -> None:
    def flops(name: str) -> float:
        rule = registry.find(BY_ID[name].type)
        assert rule is not None
        return rule.flops(BY_ID[name])

    assert flops("conv1d[4x8x8-12x8x3]") == 2 * 4 * 12 * 4 * 8 * 3
    assert flops("conv2d[4x5x6x8-12x3x3x8]") == 2 * 4 * 3 * 3 * 12 * 3 * 3 * 8
    assert flops("conv2d[4x4x5x6-8x1x3x3-8]") == 2 * 4 * 8 * 3 * 3 * 3 * 3
    assert flops("deconv2d[4x8x4x4-8x4x2x2]") == 2 * 4 * 8 * 4 * 4 * 4 * 2 * 2
    assert flops("avg_pool_2d_grad[4x8x4x8-4x8x8x16]") == 4 * 8 * 8 * 16
    assert flops("upsample_bilinear_2d[4x8x4x12]") == 4 * 4 * 8 * 8 * 4
    assert flops("concat[4x8x4-4x4x4]") == 0
