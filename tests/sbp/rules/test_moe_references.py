"""Rules of routing, indexing and losses: right, complete, and their references against others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from scipy import special

from autoddl.sbp.numpy_oracle.simulated_ops import check_signature, run_op, sample_inputs
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.registry import OpView, find, signatures
from autoddl.sbp.state import Sbp, broadcast
from experiments.rule_cases import case, case_id
from experiments.rule_cases.routing_cases import CASES
from tests.sbp.missing_signatures import missing_signatures

Arrays = dict[str, np.ndarray]


def run(view: OpView, inputs: Arrays) -> Arrays:
    """Run the reference on one device."""
    whole = dict.fromkeys(view.inputs + view.outputs, broadcast(1))
    results = run_op(view, whole, (1,), {name: [array] for name, array in inputs.items()})
    return {name: array for name, (array,) in results.items()}


def drawn(view: OpView) -> tuple[Arrays, Arrays]:
    inputs = sample_inputs(view, np.random.default_rng(5))
    return inputs, run(view, inputs)


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("view", CASES, ids=case_id)
def test_signatures_are_right(view: OpView, mesh: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    faults = [
        check_signature(view, signature, mesh, rng) for signature in nd_signatures(view, mesh)
    ]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("view", CASES, ids=case_id)
def test_no_signature_is_missing(view: OpView) -> None:
    """Any state of an operand that is not read gives right numbers: those are left out."""
    rule = find(view.type)
    assert rule is not None
    unread = rule.indices(view).shape_only

    def text(signature: Mapping[str, Sbp]) -> str:
        return " ".join(f"{n} {x}" for n, x in signature.items() if n not in unread)

    missing = missing_signatures(view, 2, np.random.default_rng(2))
    assert set(map(text, missing)) - set(map(text, signatures(view))) == set()


# --- choices -------------------------------------------------------------------------------------


def test_choices_by_hand() -> None:
    x = np.array([[3.0, 9, 5, 7], [8, 2, 6, 4]])
    assert run(case("argmax", "in_0: 2 4 -> out_0: 2"), {"in_0": x})["out_0"].tolist() == [1, 0]
    top = run(case("top_k", "in_0: 2 4 -> out_0: 2 2", k=2), {"in_0": x})["out_0"]
    assert top.tolist() == [[1, 3], [0, 2]]
    text = "in_0: 2 4 -> out_0: 2 4"
    rising = run(case("arg_sort", text, direction="ASCENDING"), {"in_0": x})["out_0"]
    assert rising.tolist() == [[0, 2, 3, 1], [1, 3, 2, 0]]
    falling = run(case("arg_sort", text, direction="DESCENDING"), {"in_0": x})["out_0"]
    assert falling.tolist() == [[1, 3, 2, 0], [0, 2, 3, 1]]
    view = case("in_top_k", "predictions_0: 2 4, targets_0: 2 -> out_0: 2", k=2)
    hits = run(view, {"predictions_0": x, "targets_0": np.array([3, 3])})["out_0"]
    assert hits.tolist() == [True, False]


def test_one_hot_by_hand() -> None:
    view = case(
        "one_hot", "indices_0: 2 -> out_0: 2 3", dtype=2, floating_on_value=2.0,
        floating_off_value=0.5, integer_on_value=7, integer_off_value=8,
    )  # fmt: skip
    numbers = np.array([2, 0])
    assert run(view, {"indices_0": numbers})["out_0"].tolist() == [[0.5, 0.5, 2], [2, 0.5, 0.5]]
    whole = OpView(**{**vars(view), "attr": {**view.attr, "dtype": 6}})
    assert run(whole, {"indices_0": numbers})["out_0"].tolist() == [[8, 8, 7], [7, 8, 8]]


def test_flipping_around_a_cumsum_is_its_gradient() -> None:
    shape = "4 6 3"
    sums = case("cumsum", f"x_0: {shape} -> y_0: {shape}", dim=1)
    flip = case("flip", f"x_0: {shape} -> y_0: {shape}", dims=(1,))
    inputs, results = drawn(sums)
    x, dy = inputs["x_0"], np.random.default_rng(7).normal(size=(4, 6, 3))
    np.testing.assert_allclose(results["y_0"], np.tril(np.ones((6, 6))) @ x)
    back = run(flip, {"x_0": run(sums, {"x_0": run(flip, {"x_0": dy})["y_0"]})["y_0"]})["y_0"]
    assert np.sum(dy * results["y_0"]) == pytest.approx(np.sum(back * x))


# --- indexing: loops over places -----------------------------------------------------------------


@pytest.mark.parametrize("view", [v for v in CASES if v.type == "dim_gather"], ids=case_id)
def test_dim_gather_by_place(view: OpView) -> None:
    inputs, results = drawn(view)
    for place in np.ndindex(*view.shape["output_0"]):
        row = list(place)
        row[view.attr["dim"]] = inputs["index_0"][place]
        assert results["output_0"][place] == inputs["input_0"][tuple(row)]


@pytest.mark.parametrize("view", [v for v in CASES if v.type == "gather_nd"], ids=case_id)
def test_gather_nd_by_place(view: OpView) -> None:
    inputs, results = drawn(view)
    for place in np.ndindex(*view.shape["indices_0"][:-1]):
        row = inputs["params_0"][tuple(inputs["indices_0"][place])]
        np.testing.assert_array_equal(results["out_0"][place], row)


@pytest.mark.parametrize("view", [v for v in CASES if v.type == "batch_gather"], ids=case_id)
def test_batch_gather_by_place(view: OpView) -> None:
    inputs, results = drawn(view)
    for place in np.ndindex(*view.shape["indices_0"]):
        row = inputs["in_0"][(*place[:-1], inputs["indices_0"][place])]
        np.testing.assert_array_equal(results["out_0"][place], row)


def test_embedding_by_place() -> None:
    inputs, results = drawn(next(v for v in CASES if v.type == "embedding"))
    np.testing.assert_array_equal(results["out_0"], inputs["weight_0"][inputs["indices_0"]])


def test_embedding_grad_by_hand() -> None:
    text = "dy_0: 4 1, indices_0: 4, weight_0: 3 1 -> dx_0: 3 1"
    inputs = {
        "dy_0": np.array([[1.0], [2], [4], [8]]), "indices_0": np.array([2, 0, 2, 1]),
        "weight_0": np.zeros((3, 1)),
    }  # fmt: skip
    for padding, scaled, expected in [(-1, False, [2, 8, 5]), (1, True, [2, 0, 2.5])]:
        view = case("embedding_grad", text, padding_idx=padding, scale_grad_by_freq=scaled)
        assert run(view, inputs)["dx_0"].ravel().tolist() == expected


# --- losses --------------------------------------------------------------------------------------


def test_binary_cross_entropies() -> None:
    view = next(v for v in CASES if v.type == "binary_cross_entropy" and len(v.inputs) == 3)
    inputs, results = drawn(view)
    p, t, w = (inputs[name] for name in ("input_0", "target_0", "weight_0"))
    expected = w * (special.entr(p) + special.rel_entr(p, p))  # 0 + entropy where p is t
    same = run(view, {**inputs, "target_0": p})["out_0"]
    np.testing.assert_allclose(same, expected + w * special.entr(1 - p))
    np.testing.assert_allclose(
        results["out_0"], w * -(special.xlogy(t, p) + special.xlog1py(1 - t, -p))
    )
    logits = next(v for v in CASES if "pos_weight_0" in v.inputs and "dy_0" not in v.inputs)
    inputs, results = drawn(logits)
    x, t, w, q = (inputs[f"{name}_0"] for name in ("input", "target", "weight", "pos_weight"))
    expected = -w * (q * t * special.log_expit(x) + (1 - t) * special.log_expit(-x))
    np.testing.assert_allclose(results["out_0"], expected)


def test_mean_of_binary_cross_entropy() -> None:
    name = "binary_cross_entropy_with_logits_reduce_mean"
    inputs, results = drawn(case(name, "input_0: 3 5, target_0: 3 5 -> out_0:"))
    x, t = inputs["input_0"], inputs["target_0"]
    expected = -(t * special.log_expit(x) + (1 - t) * special.log_expit(-x)).mean()
    np.testing.assert_allclose(results["out_0"], expected)


def test_smooth_l1_by_hand() -> None:
    view = case("smooth_l1_loss", "input_0: 3, target_0: 3 -> out_0: 3", beta=2.0)
    inputs = {"input_0": np.array([1.0, 5, -4]), "target_0": np.array([0.0, 1, 0])}
    assert run(view, inputs)["out_0"].tolist() == [0.25, 3, 3]


@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div_against_scipy(log_target: bool) -> None:
    view = case("kl_div_loss", "input_0: 3 5, target_0: 3 5 -> out_0: 3 5", log_target=log_target)
    rng = np.random.default_rng(3)
    p, q = rng.uniform(0.1, 0.9, (2, 3, 5))
    inputs = {"input_0": np.log(p), "target_0": np.log(q) if log_target else q}
    np.testing.assert_allclose(run(view, inputs)["out_0"], special.rel_entr(q, p))
    if not log_target:
        nothing = run(view, {**inputs, "target_0": np.zeros((3, 5))})["out_0"]
        assert np.all(nothing == 0)


def test_softmax_losses() -> None:
    view = next(v for v in CASES if v.type == "sparse_softmax_cross_entropy")
    inputs, results = drawn(view)
    x, labels = inputs["prediction_0"], inputs["label_0"]
    np.testing.assert_allclose(results["prob_0"], special.softmax(x, axis=-1))
    expected = special.logsumexp(x, axis=-1) - x[np.arange(8), labels]
    np.testing.assert_allclose(results["out_0"], expected)
    dense = next(v for v in CASES if v.type == "softmax_cross_entropy")
    again = run(dense, {"prediction_0": x, "label_0": np.eye(12)[labels]})
    np.testing.assert_allclose(again["out_0"], expected)
    np.testing.assert_allclose(again["prob_0"], results["prob_0"])


# --- gradients -----------------------------------------------------------------------------------

# Gradient case type → (forward type, operand that the gradient is of, dy, name of the gradient).
_PORTS = {
    "dim_scatter_add_like": ("dim_gather", "input_0", "src_0"),
    "scatter_nd_like": ("gather_nd", "params_0", "updates_0"),
    "scatter_nd": ("gather_nd", "params_0", "updates_0"),
    "unsorted_batch_segment_sum": ("batch_gather", "in_0", "data_0"),
    "embedding_grad": ("embedding", "weight_0", "dy_0"),
    "sparse_softmax_cross_entropy_grad": ("sparse_softmax_cross_entropy", "prediction_0", "dy_0"),
    "softmax_cross_entropy_grad": ("softmax_cross_entropy", "prediction_0", "dy_0"),
}
RENAMED = {"segment_ids_0": "indices_0"}


def forward_of(view: OpView) -> tuple[OpView, str, str]:
    forward_type, wanted, dy = _PORTS.get(
        view.type, (view.type.removesuffix("_grad"), "input_0", "dy_0")
    )
    gradient = view.outputs[0]
    shapes: dict[str, tuple[int, ...]] = {wanted: view.shape[gradient]}
    for name in view.inputs:
        if name not in (dy, "like_0", "prob_0"):
            shapes[RENAMED.get(name, name)] = view.shape[name]
    out = "output_0" if forward_type == "dim_gather" else "out_0"
    outputs = {out: view.shape[dy]}
    if "softmax" in forward_type:
        outputs["prob_0"] = view.shape[gradient]
    names = tuple(shapes)
    forward = OpView(forward_type, names, tuple(outputs), shapes | outputs, view.attr)
    return forward, wanted, dy


def is_gradient(view: OpView) -> bool:
    return view.type.endswith("_grad") or view.type in _PORTS


def _is_derivative(view: OpView) -> bool:
    """Leave out gradients that skip the padding or scale: they are checked by hand."""
    options = view.attr.get("scale_grad_by_freq") or view.attr.get("padding_idx", -1) >= 0
    return is_gradient(view) and not options


@pytest.mark.parametrize("view", [v for v in CASES if _is_derivative(v)], ids=case_id)
def test_gradients_are_derivatives(view: OpView) -> None:
    """Compare <dy, f(x + hv) - f(x - hv)> / 2h with <dx, v>."""
    forward, wanted, dy_name = forward_of(view)
    inputs, results = drawn(forward)
    if forward.type == "softmax_cross_entropy":
        inputs["label_0"] = special.softmax(inputs["label_0"], axis=-1)  # as the kernel assumes
        results = run(forward, inputs)
    rng = np.random.default_rng(6)
    dy = rng.normal(size=view.shape[dy_name])
    v = rng.normal(size=inputs[wanted].shape)
    known = {**inputs, **results, dy_name: dy, "like_0": inputs[wanted]}
    known |= {old: inputs[new] for old, new in RENAMED.items() if new in inputs}
    dx = run(view, {name: known[name] for name in view.inputs})[view.outputs[0]]
    h = 1e-6
    ends = [
        run(forward, {**inputs, wanted: inputs[wanted] + s * h * v})[forward.outputs[0]]
        for s in (1, -1)
    ]
    assert np.sum(dy * (ends[0] - ends[1])) / (2 * h) == pytest.approx(np.sum(dx * v), rel=1e-6)
