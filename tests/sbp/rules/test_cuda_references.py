"""References of ops that only graphs on GPUs have, against decompositions and values by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from autoddl.errors import RuleError
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.fused_matmul import mask_words, pack_rows, unpack_rows
from autoddl.sbp.rules.fused_normalization import pack_bits, unpack_bits
from autoddl.sbp.rules.registry import find, labelled, signatures
from experiments.rule_cases.reading import case
from tests.sbp.rules.cuda_ops import drawn, first, run, without

_NAR = first("normalization_add_relu")


def test_layer_norm_gives_mean_zero_and_deviation_one() -> None:
    inputs, results = drawn(first("layer_norm"))
    plain = (results["y_0"] - inputs["beta_0"]) / inputs["gamma_0"]
    np.testing.assert_allclose(plain.mean(axis=-1), 0, atol=1e-12)
    np.testing.assert_allclose(plain.std(axis=-1), 1, rtol=1e-3)
    np.testing.assert_allclose(results["mean_0"], inputs["x_0"].mean(axis=-1))
    variance = inputs["x_0"].var(axis=-1)
    np.testing.assert_allclose(results["inv_variance_0"], (variance + 1e-5) ** -0.5)


def test_rms_norm_by_hand() -> None:
    view = case(
        "rms_norm", "x_0: 1 2, weight_0: 2 -> y_0: 1 2, inv_rms_0: 1", normalized_shape=(2,),
        epsilon=0.0,
    )  # fmt: skip
    results = run(view, {"x_0": np.array([[1.0, 7.0]]), "weight_0": np.array([10.0, 100.0])})
    np.testing.assert_allclose(results["inv_rms_0"], [0.2])
    np.testing.assert_allclose(results["y_0"], [[2.0, 140.0]])


@pytest.mark.parametrize("position", [0, 2], ids=["channels first", "channels last, silu"])
def test_group_norm_is_layer_norm_of_every_group(position: int) -> None:
    view = first("group_norm", position)
    inputs, results = drawn(view)
    last = position == 2
    channels = np.moveaxis(inputs["x_0"], -1, 1) if last else inputs["x_0"]
    y = np.empty_like(channels)
    for n in range(4):
        for g in range(4):
            part = slice(2 * g, 2 * g + 2)
            group = channels[n, part]
            shape = (2, *[1] * (group.ndim - 1))
            gamma, beta = (inputs[name][part].reshape(shape) for name in ("gamma_0", "beta_0"))
            normal = (group - group.mean()) / math.sqrt(group.var() + 1e-5)
            y[n, part] = normal * gamma + beta
            assert results["mean_0"][n, g] == pytest.approx(group.mean())
    y = np.moveaxis(y, 1, -1) * special.expit(np.moveaxis(y, 1, -1)) if last else y
    np.testing.assert_allclose(results["y_0"], y)


def test_bits_are_packed_by_rows_of_128_from_the_lowest() -> None:
    assert [mask_words(columns) for columns in (1, 128, 129)] == [4, 4, 8]
    mask = np.zeros((2, 40), dtype=bool)
    mask[0, 0] = mask[0, 33] = mask[1, 31] = True
    assert pack_rows(mask).tolist() == [[1, 2, 0, 0], [1 << 31, 0, 0, 0]]
    assert (unpack_rows(pack_rows(mask), 40) == mask).all()
    assert pack_bits(mask).tolist() == [1, 2, 1 << 7]  # bit 71 = 2 * 32 + 7, no padding of rows
    assert (unpack_bits(pack_bits(mask), mask.shape) == mask).all()


def test_fused_mlp_is_products_and_relus() -> None:
    inputs, results = drawn(first("cublas_fused_mlp"))
    x = inputs["x_0"]
    for i in range(3):
        x = np.einsum("mk,nk->mn", x, inputs[f"weights_{i}"]) + inputs[f"biases_{i}"]
        columns = x.shape[1]
        assert (unpack_rows(results[f"cublas_aux_{i}"], columns) == (x > 0)).all()
        x = np.clip(x, 0, None)
        if i < 2:
            np.testing.assert_allclose(results[f"hidden_{i}"], x)
    np.testing.assert_allclose(results["out_0"], x)


def test_fused_dropout_mlp_keeps_what_its_masks_say() -> None:
    view = first("fused_matmul_bias_add_relu_dropout")
    inputs, results = drawn(view)
    x, rates = inputs["x_0"], view.attr["dropout_rate_list"]
    for i, rate in enumerate(rates):
        x = x @ inputs[f"weights_{i}"].T + inputs[f"biases_{i}"]
        kept = unpack_rows(results[f"cublas_aux_{i}"], x.shape[1])
        assert not (kept & (x <= 0)).any()
        x = np.where(kept, x / (1 - rate), 0)
    np.testing.assert_allclose(results["out_0"], x)
    last = case("fused_relu_dropout_grad", "dy_0: 8 4, mask_0: 8 4 -> dx_0: 8 4", scale=1.25)
    dx = run(last, {"dy_0": np.ones((8, 4)), "mask_0": results["cublas_aux_2"]})["dx_0"]
    np.testing.assert_array_equal(dx, 1.25 * kept)


def test_fused_matmul_bias() -> None:
    inputs, results = drawn(first("fused_matmul_bias", 1))
    expected = np.einsum("mk,nk->mn", inputs["x_0"], inputs["weight_0"]) + inputs["bias_0"]
    np.testing.assert_allclose(results["out_0"], expected + inputs["_add_to_output_0"])


@pytest.mark.parametrize(
    "op_type", ["fused_scale_mask_softmax_dropout", "fused_bias_add_scale_mask_softmax_dropout"]
)
def test_masked_softmax(op_type: str) -> None:
    inputs, results = drawn(first(op_type))
    scores = 0.5 * (inputs["x_0"] + inputs.get("bias_0", 0))
    mask = np.broadcast_to(inputs["mask_0"], scores.shape) != 0
    softmax = special.softmax(np.where(mask, scores, -np.inf), axis=-1)
    np.testing.assert_allclose(results["softmax_y_0"], softmax, atol=1e-15)
    dropped = softmax * inputs["dropout_mask_0"] * 1.1111111640930176
    np.testing.assert_allclose(results["y_0"], dropped, atol=1e-15)


def test_tril_softmax_sees_no_later_column() -> None:
    inputs, results = drawn(first("fused_tril_scale_softmax_mask_scale"))
    for row in range(4):
        seen = special.softmax(0.5 * inputs["x_0"][:, row, : row + 1], axis=-1)
        np.testing.assert_allclose(results["softmax_y_0"][:, row, : row + 1], seen)
        assert (results["softmax_y_0"][:, row, row + 1 :] == 0).all()


def test_scale_tril_by_hand() -> None:
    view = first("fused_scale_tril", 1)
    x = np.arange(1.0, 7.0).reshape(1, 2, 3)
    view = replace(view, shape={"in_0": x.shape, "out_0": x.shape})
    assert run(view, {"in_0": x})["out_0"].tolist() == [[[2, 4, -5], [8, 10, 12]]]


def test_self_attention_by_einsum() -> None:
    inputs, results = drawn(first("fused_self_attention_query_mul_key_and_value"))
    parts = inputs["hidden_states_0"].reshape(3, 4, 8, 3, 2)
    q, k, v = (parts[:, :, :, i] for i in range(3))
    scores = 0.5 * np.einsum("sbnh,tbnh->bnst", q, k)
    np.testing.assert_allclose(results["query_mul_key_0"], scores)
    np.testing.assert_allclose(results["value_0"], np.einsum("sbnh->bnsh", v))


def test_causal_attention_by_einsum() -> None:
    inputs, results = drawn(first("fused_multi_head_attention_inference"))
    q, k = (inputs[name].reshape(4, 8, 3, 2) for name in ("query_0", "key_0"))
    scores = np.einsum("bmnh,btnh->bnmt", q, k) / math.sqrt(2)
    weights = special.softmax(np.where(np.tri(8, dtype=bool), scores, -np.inf), axis=-1)
    mixed = np.einsum("bnmt,btnh->bmnh", weights, inputs["value_0"].reshape(4, 8, 3, 3))
    np.testing.assert_allclose(results["out_0"], mixed.reshape(4, 8, 9))


def test_interactions_by_hand() -> None:
    attrs = {"pooling": "none", "self_interaction": False, "output_padding": 2}
    view = case(
        "fused_dot_feature_interaction", "features_0: 1 1 2, features_1: 1 2 2, "
        "output_concat_0: 1 1 -> out_0: 1 6", **attrs,
    )  # fmt: skip
    a, b, c = [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]
    inputs = {
        "features_0": np.array([[a]]), "features_1": np.array([[b, c]]),
        "output_concat_0": np.array([[9.0]]),
    }  # fmt: skip
    # Pairs row by row: b·a, c·a, c·b.
    assert run(view, inputs)["out_0"].tolist() == [[9, 11, 17, 39, 0, 0]]
    pooled = replace(
        without(view, "output_concat_0"),
        attr=attrs | {"pooling": "sum"},
        shape={**view.shape, "out_0": (1, 2)},
    )
    assert run(pooled, inputs)["out_0"].tolist() == [[1 * 3 + 1 * 5 + 3 * 5, 2 * 4 + 2 * 6 + 4 * 6]]


def test_sparse_features_are_not_modelled() -> None:
    view = case(
        "fused_dot_feature_interaction", "features_0: 4 1 8, sparse_feature_0: 6 8, "
        "sparse_indices_0: 4 3 -> out_0: 4 6", pooling="none", self_interaction=False,
        output_padding=0,
    )  # fmt: skip
    assert [str(set(s.values())) for s in signatures(view)] == ["{B}"]
    with pytest.raises(RuleError, match="sparse features"):
        drawn(view)


def test_bias_gelu_and_mask() -> None:
    inputs, results = drawn(first("fused_bias_add_gelu"))
    x = inputs["a_0"] + inputs["b_0"]
    np.testing.assert_allclose(results["out_0"], x * special.ndtr(x))
    inputs, results = drawn(first("fused_bias_add_mask_scale", 1))
    expected = (inputs["a_0"] + inputs["b_0"]) * inputs["mask_0"] * 1.1111111640930176
    np.testing.assert_allclose(results["out_0"], expected + inputs["_add_to_output_0"])


def test_fast_gelu_is_close_to_gelu() -> None:
    inputs, results = drawn(first("fused_fast_gelu_mul"))
    exact = inputs["in_0"] * special.ndtr(inputs["in_0"]) * inputs["multiplier_0"]
    np.testing.assert_allclose(results["out_0"], exact, atol=2e-3)


def test_batchnorm_add_relu_by_hand() -> None:
    view = case(
        "normalization_add_relu", "x_0: 2 1, addend_0: 2 1, moving_mean_0: 1, "
        "moving_variance_0: 1, gamma_0: 1, beta_0: 1 -> y_0: 2 1, reserve_space_0: 1, mean_0: 1, "
        "inv_variance_0: 1", training=True, momentum=0.75, axis=1, epsilon=0.0,
    )  # fmt: skip
    one = np.array([1.0])
    inputs = {
        "x_0": np.array([[1.0], [5.0]]), "addend_0": np.array([[0.5], [0.5]]), "gamma_0": 2 * one,
        "beta_0": one, "moving_mean_0": 4 * one, "moving_variance_0": 16 * one,
    }  # fmt: skip
    results = run(view, inputs)  # mean 3, variance 4 (unbiased: 8)
    assert results["y_0"].tolist() == [[0.0], [3.5]]
    assert results["reserve_space_0"].tolist() == [0b10]
    assert results["moving_mean_0"].tolist() == [0.75 * 4 + 0.25 * 3]
    assert results["moving_variance_0"].tolist() == [0.75 * 16 + 0.25 * 8]
    frozen = replace(view, attr={**view.attr, "training": False})
    results = run(frozen, inputs)
    assert results["y_0"].tolist() == [[2 * (1 - 4) / 4 + 1.5], [2 * (5 - 4) / 4 + 1.5]]
    assert results["moving_mean_0"].tolist() == [4.0]


def test_cutting_the_batch_of_a_batchnorm_needs_permission() -> None:
    names = ("x_0", "y_0", "mean_0", "reserve_space_0", "moving_mean_0")
    allow = frozenset({"local_batchnorm"})
    assert set(labelled(_NAR)) == {"B"}
    cut = labelled(_NAR, allow=allow)["cut n"]
    assert [str(cut[name]) for name in names] == ["S0", "S0", "B*", "S0", "B*"]
    backward = labelled(first("normalization_add_relu_grad"), allow=allow)["cut n"]
    names = ("dx_0", "addend_diff_0", "gamma_diff_0", "beta_diff_0", "inv_variance_0")
    assert [str(backward[name]) for name in names] == ["S0", "S0", "P", "P", "B*"]
    # The running ones are written in place, as those of a batch norm alone are: no parameter holds them.
    rules = [find(op_type) for op_type in ("normalization", "normalization_add_relu")]
    assert len({rule.writes for rule in rules if rule is not None}) == 1
    frozen = replace(_NAR, attr={**_NAR.attr, "training": False})
    assert set(labelled(frozen)) == {"B", "cut n"}
    # Channels are cut where they are outermost; a word that is not full is cut nowhere.
    assert "cut c" in labelled(first("normalization_add_relu", 1))
    large = dict.fromkeys(("x_0", "addend_0", "y_0"), (4, 5, 1, 2)) | {"reserve_space_0": (2,)}
    odd = replace(_NAR, shape={name: large.get(name, (5,)) for name in _NAR.shape})
    assert set(labelled(odd, allow=allow)) == {"B"}


def test_masks_of_shards_need_permission() -> None:
    """With it a mask is cut as what it masks, whichever dim that is; without nothing is."""
    allow = frozenset({"local_dropout"})
    for op_type in ("dropout", "random_mask_like"):
        view = first(op_type)
        assert not any(label.startswith("cut") for label in labelled(view))
        cuts = [s for label, s in labelled(view, allow=allow).items() if label.startswith("cut")]
        assert cuts and all(len(set(map(str, cut.values())) - {"P"}) == 1 for cut in cuts)


# --- mixed precision -------------------------------------------------------------------------


def test_counts_of_infinite_numbers() -> None:
    view = case("multi_count_not_finite", "x_0: 2, x_1: 2 2 -> y_0: 1")
    inputs = {"x_0": np.array([1, np.inf]), "x_1": np.array([[np.nan, 2], [-np.inf, 3]])}
    assert run(view, inputs)["y_0"].tolist() == [3]


@pytest.mark.parametrize(
    ("bad", "scale", "steps", "expected"),
    [
        (0, 8.0, 3, (8.0, 4)),
        (0, 8.0, 4, (16.0, 0)),
        (2, 8.0, 4, (4.0, 0)),
        (1, 1.5, 0, (1.0, 0)),
        (0, 3e38, 4, (np.finfo(np.float32).max, 0)),
    ],
)
def test_loss_scale(bad: int, scale: float, steps: int, expected: tuple[float, int]) -> None:
    view = first("dynamic_loss_scale_schedule")
    view = replace(view, attr={"increment_period": 5, "multiplier": 2.0})
    names, values = view.inputs, (bad, scale, steps)
    inputs = {name: np.array([value]) for name, value in zip(names, values, strict=True)}
    results = run(view, inputs)
    assert (results["loss_scale_0"].item(), results["good_step_counter_0"].item()) == expected


@pytest.mark.parametrize("condition", [0, 1])
def test_assignments(condition: int) -> None:
    inputs = {
        "ref_0": np.full((4, 8), 1.0), "value_0": np.full((4, 8), 2.0),
        "condition_0": np.array([condition]),
    }  # fmt: skip
    assert (run(first("assign_if"), inputs)["ref_0"] == (2 if condition else 1)).all()
    assert (run(first("assign_if_not"), inputs)["ref_0"] == (1 if condition else 2)).all()


def test_scales() -> None:
    inputs, results = drawn(replace(first("fused_cast_scale"), attr={"scale": 0.25}))
    expected = inputs["x_0"] * inputs["scale_by_tensor_0"] * 0.25
    np.testing.assert_allclose(results["y_0"], expected)
    inputs, results = drawn(first("scalar_mul_by_tensor"))
    np.testing.assert_allclose(results["y_0"], inputs["x_0"] * inputs["scalar_0"])


def test_random_ops_have_no_cut() -> None:
    for op_type in ("dropout", "random_mask_like", "fused_matmul_bias_add_relu_dropout"):
        rule = registry.find(op_type)
        assert rule is not None and "Random" in rule.notes
        assert not any(label.startswith("cut") for label in labelled(first(op_type)))
    inputs, results = drawn(first("dropout", 1))
    kept = results["mask_0"] != 0
    expected = np.where(kept, inputs["in_0"] / 0.9, 0) + inputs["_add_to_output_0"]
    np.testing.assert_allclose(results["out_0"], expected, rtol=1e-7)
    assert 0 < np.sum(kept) < kept.size


# --- which signatures ------------------------------------------------------------------------


LISTED = {
    ("layer_norm", 0): "S0 B B S0 S0 S0; S1 B B S1 S1 S1; B P P P B B",
    ("layer_norm_grad", 0): "S0 S0 S0 S0 B S0; P B B B B P; B B B B P P",
    ("layer_norm_grad", 2): "S0 S0 S0 S0 B S0 S0; S1 S1 S1 S1 B S1 S1; P B B B B P P; B B B B P P P",
    ("rms_norm_param_grad", 0): (
        "S0 S0 S0 P; S1 S1 S1 P; S2 S2 B S0; P B B P; B P B P; B B P P"
    ),
    ("fused_matmul_bias", 1): "S0 B B S0 S0; S1 S1 P P P; B S0 S0 S1 S1; P B P P P; B P P P P",
    ("cublas_bias_add_relu_matmul_grad", 0): "S0 B S0 S0 P; S1 S0 B P P; P B B P P; B P B P P",
    ("fused_self_attention_query_mul_key_and_value", 0): "S1 S0 S0; S2 S1 S1",
    ("fused_dot_feature_interaction", 0): "S0 S0 S0 S0; S2 S2 P P",
    ("fused_dot_feature_interaction_grad", 0): (
        "S0 S0 S0 S0 S0 S0; B S2 S2 S2 S2 B; P B B P P P; B P P P P B"
    ),
    ("count_not_finite", 0): "S0 P; S1 P",
}  # fmt: skip


@pytest.mark.parametrize("key", LISTED, ids=str)
def test_signatures_by_hand(key: tuple[str, int]) -> None:
    view = first(*key)
    names = view.inputs + view.outputs
    found = {" ".join(str(s[name]) for name in names) for s in signatures(view)}
    assert found - {" ".join("B" * len(names))} == set(LISTED[key].split("; "))
