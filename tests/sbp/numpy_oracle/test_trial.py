"""Finding right signatures by trial: every combination is judged as the oracle judges it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle.simulated_ops import MORE_DRAWS, check_signature, valid_signatures
from autoddl.sbp.numpy_oracle.trial import close, even_states, fitting
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.registry import LocalOp, OpRule, index_map
from autoddl.sbp.state import P_MAX, P_MIN, B, NdSbp, P, S
from experiments.rule_cases import case
from tests.sbp.missing_signatures import missing_signatures

NAMES = ("x_0", "y_0")
ALONE = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}


@pytest.mark.parametrize(
    ("text", "attrs"),
    [
        ("matmul | a_0: 4 2, b_0: 2 6 -> out_0: 4 6", ALONE),
        ("nll | input_0: 4 6, target_0: 4 -> output_0: 4, out_weight_0: 4", {"ignore_index": 3}),
        ("broadcast_mul | x_0: 4 2, y_0: 2 -> z_0: 4 2", {}),
    ],
)
def test_equals_checking_one_by_one(text: str, attrs: dict[str, object]) -> None:
    op_type, _, shapes = text.partition(" | ")
    view = case(op_type, shapes, **attrs)
    names = view.inputs + view.outputs
    rng = np.random.default_rng(1)
    right = [
        dict(zip(names, combo, strict=True))
        for combo in itertools.product(*(even_states(view.shape[name], 2) for name in names))
        if check_signature(
            view, {n: NdSbp((s,)) for n, s in zip(names, combo, strict=True)}, (2,), rng
        )
        is None
    ]
    found = valid_signatures(view, 2, rng)
    assert len(found) == len(right)
    assert all(signature in right for signature in found)


def test_states_that_fit() -> None:
    whole = np.array([1.0, 5.0])
    assert fitting([whole, whole], whole) == [B]
    assert fitting([whole - 3, whole * 0 + 3], whole) == [P]
    assert fitting([whole - 3, whole], whole) == [P_MAX]
    assert fitting([whole + 3, whole], whole) == [P_MIN]
    assert fitting([whole, whole * 0], whole) == [P]  # also P(max), which says nothing new
    assert fitting([whole * 0, whole * 0], whole * 0) == [B, P]
    assert fitting([whole, whole + 1], whole + 2) == []


def test_close() -> None:
    assert close(np.array([1.0]), np.array([1 + 1e-12]))
    assert not close(np.array([1.0]), np.array([1 + 1e-6]))
    assert not close(np.array([np.nan]), np.array([np.nan]))
    assert close(np.array([True]), np.array([True]))
    assert even_states((4, 3, 1), 2) == [B, P, S(0)]


def test_what_is_right_by_accident_is_sorted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros, which the sampler draws first, would make every P of relu right."""
    rule = registry.find("relu")
    assert rule is not None
    drawn: list[int] = []

    def zeros_first(view: registry.OpView, name: str, rng: np.random.Generator) -> np.ndarray:
        drawn.append(0)
        shape = view.shape[name]
        return np.zeros(shape) if len(drawn) == 1 else rng.normal(size=shape)

    patched = OpRule("relu", rule.indices, rule.reference, samplers={"x_0": zeros_first})
    monkeypatch.setitem(registry._REGISTRY, "relu", patched)
    view = case("relu", "x_0: 4 -> y_0: 4")
    found = valid_signatures(view, 2, np.random.default_rng(0))
    assert [tuple(map(str, map(s.__getitem__, NAMES))) for s in found] == [("B", "B"), ("S0", "S0")]
    assert len(drawn) == 1 + MORE_DRAWS


def test_counting_what_is_not_finite_is_not_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(op: LocalOp) -> dict[str, np.ndarray]:
        return {"y_0": np.array([float(np.sum(~np.isfinite(op.inputs["x_0"])))])}

    def broken(view: registry.OpView, name: str, rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(view.shape[name]) < 0.5, np.inf, 1.0)

    rule = OpRule(
        "counts",
        lambda view: index_map("x_0: i -> y_0: .", summed="i"),
        counts,
        samplers={"x_0": broken},
    )
    monkeypatch.setitem(registry._REGISTRY, "counts", rule)
    view = case("counts", "x_0: 40 -> y_0: 1")
    found = valid_signatures(view, 2, np.random.default_rng(0))
    assert [(str(s["x_0"]), str(s["y_0"])) for s in found] == [("B", "B"), ("S0", "P")]


def test_a_reference_that_reads_more_than_the_shape_is_right_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reads(op: LocalOp) -> dict[str, np.ndarray]:
        return {"out_0": op.inputs["like_0"] * 0}

    rule = OpRule(
        "zero_like", lambda view: index_map("like_0: i -> out_0: i", shape_only=["like_0"]), reads
    )
    monkeypatch.setitem(registry._REGISTRY, "zero_like", rule)
    view = case("zero_like", "like_0: 4 -> out_0: 4")
    assert valid_signatures(view, 2, np.random.default_rng(0)) == ()


def test_the_shape_of_a_shape_only_input_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = registry.find("zero_like")
    assert rule is not None
    by_input = OpRule(
        "zero_like", rule.indices, lambda op: {"out_0": np.zeros(op.inputs["like_0"].shape)}
    )
    monkeypatch.setitem(registry._REGISTRY, "zero_like", by_input)
    view = case("zero_like", "like_0: 4 -> out_0: 4")
    found = valid_signatures(view, 2, np.random.default_rng(0))
    assert [str(s["out_0"]) for s in found] == ["B", "P", "S0"]
    assert all(list(s) == ["out_0"] for s in found)


@pytest.mark.parametrize(
    ("later", "expected"), [(-1.0, "B-B B-P B-S0"), (1.0, "B/B-B P/B-P S0/B-S0")]
)
def test_an_input_that_is_not_read_may_have_any_state(
    monkeypatch: pytest.MonkeyPatch, later: float, expected: str
) -> None:
    """Where later draws make the op read it, it counts."""
    drawn: list[int] = []

    def sometimes(op: LocalOp) -> dict[str, np.ndarray]:
        if float(op.inputs["on_0"].item()) > 0:
            return {"out_0": op.inputs["x_0"] * 1.0}
        return {"out_0": np.zeros(op.view.shape["out_0"])}

    def switch(view: registry.OpView, name: str, rng: np.random.Generator) -> np.ndarray:
        drawn.append(0)
        return np.array([-1.0 if len(drawn) == 1 else later])

    rule = OpRule(
        "sometimes",
        lambda view: index_map("x_0: i, on_0: . -> out_0: i"),
        sometimes,
        samplers={"on_0": switch},
    )
    monkeypatch.setitem(registry._REGISTRY, "sometimes", rule)
    view = case("sometimes", "x_0: 4, on_0: 1 -> out_0: 4")
    found = [s for s in valid_signatures(view, 2, np.random.default_rng(0)) if s["on_0"] == B]
    texts = ["/".join(str(s[n]) for n in view.inputs if n in s) for s in found]
    assert " ".join(f"{t}-{s['out_0']}" for t, s in zip(texts, found, strict=True)) == expected


def test_missing_signatures_give_unread_inputs_b(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = registry.find("ones_like")
    assert rule is not None
    bare = OpRule(
        "ones_like",
        lambda view: index_map("like_0: . -> out_0: .", shape_only=["like_0"]),
        rule.reference,
    )
    monkeypatch.setitem(registry._REGISTRY, "ones_like", bare)
    view = case("ones_like", "like_0: 4 -> out_0: 4")
    missing = missing_signatures(view, 2, np.random.default_rng(0))
    assert [dict(s) for s in missing] == [{"like_0": B, "out_0": S(0)}]
    assert P not in missing[0].values()
