"""The NumPy oracle itself: sharding, reassembly, running ops and whole chains, and its verdicts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.errors import AutoDDLError, RuleError
from autoddl.sbp.numpy_oracle.simulated_boxings import run_boxing
from autoddl.sbp.numpy_oracle.simulated_ops import check_signature, run_op, sample_inputs
from autoddl.sbp.numpy_oracle.simulated_tensors import Locals, assemble, shard
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.shards import all_states, shard_slices
from autoddl.sbp.state import NdSbp
from experiments.rule_cases import CASES, case, case_id

RNG = np.random.default_rng(7)


def state(text: str) -> NdSbp:
    return NdSbp.parse(text)


@pytest.mark.parametrize("mesh", [(4,), (2, 2), (2, 3), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("shape", [(24,), (8, 12)], ids=str)
def test_shards_reassemble(shape: tuple[int, ...], mesh: tuple[int, ...]) -> None:
    array = RNG.normal(size=shape)
    for nd in all_states(shape, mesh):
        locals_ = shard(array, nd, mesh, RNG)
        np.testing.assert_allclose(assemble(locals_, nd, mesh, shape), array)
        if not any(sbp.kind == "P" for sbp in nd):
            for local, coords in zip(locals_, itertools.product(*map(range, mesh)), strict=True):
                np.testing.assert_array_equal(local, array[shard_slices(shape, nd, mesh, coords)])


def test_partial_sums_are_asymmetric() -> None:
    array = np.ones((2, 3))
    parts = shard(array, state("P"), (3,), RNG)
    assert all(np.unique(part).size == part.size for part in parts)
    assert not any(np.allclose(a, b) for a, b in itertools.combinations([array, *parts], 2))


def test_partial_sums_of_integers_are_integers() -> None:
    parts = shard(np.arange(6), state("P"), (2,), RNG)
    assert all(part.dtype.kind == "i" for part in parts)
    assert (parts[0] + parts[1]).tolist() == [0, 1, 2, 3, 4, 5]


def test_replicas_of_partial_sums_agree() -> None:
    a0, a1, b0, b1 = shard(np.ones(3), state("B, P"), (2, 2), RNG)
    np.testing.assert_array_equal([a0, a1], [b0, b1])
    a0, a1, b0, b1 = shard(np.ones(3), state("P, B"), (2, 2), RNG)
    np.testing.assert_array_equal([a0, b0], [a1, b1])


def test_several_cuts_of_one_dim_nest() -> None:
    pieces = shard(np.arange(12), state("S0, S0"), (2, 3), RNG)
    assert [piece.tolist() for piece in pieces] == [[i, i + 1] for i in range(0, 12, 2)]


def test_uneven_shards_give_the_first_devices_more() -> None:
    pieces = shard(np.arange(5), state("S0"), (2,), RNG)
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2], [3, 4]]
    assert assemble(pieces, state("S0"), (2,), (5,)).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(AutoDDLError, match="3 elements into 4 pieces"):
        shard(np.ones(3), state("S0"), (4,), RNG)


@pytest.mark.parametrize("text", ["P(max)", "P(min), P(min)", "S0, P(max)"])
def test_partial_maxima(text: str) -> None:
    nd = state(text)
    mesh, array = (2,) * len(nd), RNG.normal(size=(4, 3))
    locals_ = shard(array, nd, mesh, RNG)
    assert not any(np.allclose(local, array[: len(local)]) for local in locals_)
    np.testing.assert_array_equal(assemble(locals_, nd, mesh, (4, 3)), array)


def test_assemble_sees_differing_replicas_and_wrong_shapes() -> None:
    with pytest.raises(AutoDDLError, match="replicas differ"):
        assemble([np.zeros(2), np.ones(2)], state("B"), (2,), (2,))
    with pytest.raises(AutoDDLError, match="replicas differ"):  # though the sums agree
        assemble([np.ones(1), np.zeros(1), np.zeros(1), np.ones(1)], state("B, P"), (2, 2), (1,))
    with pytest.raises(AutoDDLError, match=r"rank 1 holds shape \(3,\); \(S0\) of \(4,\)"):
        assemble([np.zeros(2), np.zeros(3)], state("S0"), (2,), (4,))


def test_samples_fit() -> None:
    wrong = []
    for view in CASES:
        drawn = {name: array.shape for name, array in sample_inputs(view, RNG).items()}
        if drawn != {name: view.shape[name] for name in view.inputs}:
            wrong.append((case_id(view), drawn))
    assert wrong == []


def test_given_inputs_are_used() -> None:
    view = case("relu", "x_0: 4 -> y_0: 4")
    sound_by_accident = {"x_0": np.zeros(4)}
    signature = {"x_0": state("B"), "y_0": state("P")}
    assert check_signature(view, signature, (2,), RNG, inputs=sound_by_accident) is None
    fault = check_signature(view, signature, (2,), RNG, inputs={"x_0": np.arange(4.0)})
    said = "relu with x_0 (B), y_0 (P) on mesh 2: y_0 is 6 at (3,) on the ranks, 3 on one device"
    assert fault == said


def test_no_rule_is_an_error() -> None:
    view = case("mish", "x_0: 4 -> y_0: 4")
    with pytest.raises(RuleError, match="op type mish: no rule"):
        check_signature(view, {"x_0": state("B"), "y_0": state("B")}, (2,), RNG)


def test_not_finite_is_a_fault_of_the_inputs() -> None:
    view = case("log", "x_0: 4 -> y_0: 4")
    signature = {"x_0": state("S0"), "y_0": state("S0")}
    with np.errstate(all="ignore"):
        fault = check_signature(view, signature, (2,), RNG, inputs={"x_0": np.zeros(4)})
    assert "not finite" in str(fault)


def test_updates_return_their_inputs() -> None:
    view = case(
        "sgd_update", "model_0: 4 2, model_diff_0: 4 2, learning_rate_0: 1 ->",
        scale=1.0, l1=0.0, l2=0.0, weight_decay=0.0, learning_rate_scale=1.0,
    )  # fmt: skip
    signature = {"model_0": "S0", "model_diff_0": "S0", "learning_rate_0": "B"}
    states = {name: state(text) for name, text in signature.items()}
    assert check_signature(view, states, (2,), RNG) is None
    wholes = sample_inputs(view, RNG)
    locals_ = {name: shard(wholes[name], states[name], (2,), RNG) for name in wholes}
    results = run_op(view, states, (2,), locals_)
    assert [local.shape for local in results["model_0"]] == [(2, 2), (2, 2)]


def test_a_chain_of_ops_and_boxings() -> None:
    """Run gelu(x w) v as a two-dim tensor-parallel layer: three ops, two boxings, 4 ranks."""
    mesh = (2, 2)
    attrs = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}
    first = case("matmul", "a_0: 4 8, b_0: 8 12 -> out_0: 4 12", **attrs)
    gelu = case("gelu", "in_0: 4 12 -> out_0: 4 12")
    second = case("matmul", "a_0: 4 12, b_0: 12 8 -> out_0: 4 8", **attrs)
    x, w, v = (RNG.normal(size=shape) for shape in ((4, 8), (8, 12), (12, 8)))

    def place(array: np.ndarray, text: str) -> Locals:
        return shard(array, state(text), mesh, RNG)

    def on_ranks(view: OpView, a: Locals, b: Locals, text: str) -> Locals:
        names = view.inputs + view.outputs
        states = dict(zip(names, map(state, text.split("; ")), strict=True))
        return run_op(view, states, mesh, dict(zip(view.inputs, (a, b), strict=False)))["out_0"]

    hidden = on_ranks(first, place(x, "B, S1"), place(w, "S1, S0"), "B, S1; S1, S0; S1, P")
    hidden = run_boxing(hidden, state("S1, P"), state("S1, S0"), (4, 12), mesh)
    active = on_ranks(gelu, hidden, [], "S1, S0; S1, S0")
    out = on_ranks(second, active, place(v, "S0, B"), "S1, S0; S0, B; P, S0")
    out = run_boxing(out, state("P, S0"), state("B, S0"), (4, 8), mesh)

    def single(view: OpView, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        whole = dict.fromkeys(view.inputs + view.outputs, state("B"))
        pairs = zip(view.inputs, ([a], [b]), strict=False)
        return run_op(view, whole, (1,), dict(pairs))["out_0"][0]

    expected = single(gelu, x @ w, x) @ v
    np.testing.assert_allclose(assemble(out, state("B, S0"), mesh, (4, 8)), expected)
