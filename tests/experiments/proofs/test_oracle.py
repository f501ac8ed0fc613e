"""The proof of the rules: it finds nothing wrong and nothing missing, and would see either."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle import simulated_tensors
from autoddl.sbp.numpy_oracle.simulated_ops import on_one_device, sample_inputs
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.registry import IndexMap, LocalOp, index_map, linear
from autoddl.sbp.shares import Cuts, Shares
from autoddl.sbp.state import S
from experiments.proofs import oracle
from experiments.rule_cases import CASES, case, threefold

_PARTIAL_TABLE = "model_0 P, model_diff_indices_0 B, model_diff_values_0 P, learning_rate_0 B"
# Right signatures that the rules leave out by design.
LEFT_OUT = {
    "slice": {"x_0 S1 -> y_0 S1"},  # every other column of an even half: only whole dims are cut
    "slice_grad": {"dy_0 S1 -> dx_0 S1"},
    # A whole value where each device needs a part: it may be cut as well.
    "slice_update": {f"ref_0 S{d}, value_0 B -> y_0 S{d}" for d in range(3)},
    # Rows of windows side by side: even parts of all windows need not be whole rows.
    "unfold": {"x_0 S2 -> y_0 S2"},
    "fold": {"x_0 S2 -> y_0 S2"},
    # Plain steps are linear, but no engine keeps a table as a partial sum.
    "indexed_slices_sgd_update": {f"{_PARTIAL_TABLE} ->"},
    "indexed_slices_momentum_update": {f"{_PARTIAL_TABLE}, momentum_0 P ->"},
}
UNSTATED = {
    "multi_count_not_finite", "multi_square_sum",  # every input may be cut in a way of its own
    "assign_if_not",  # reads its condition, of which any part may be zero
    "cublas_fused_mlp", "cublas_fused_mlp_grad",  # linear in the last layer, whichever that is
    "fused_matmul_bias_add_relu_dropout",
}  # fmt: skip


@pytest.mark.parametrize("op_type", sorted({view.type for view in CASES}))
def test_rules_are_sound_and_complete(op_type: str) -> None:
    report = oracle.run(seed=1, op_types={op_type}, sample=4)
    (result,) = report.ops
    assert report.faults == ()
    assert result.cases > 0 and result.checked > 0
    if op_type not in UNSTATED:
        missing = {line.partition(": ")[2] for line in report.missing}
        assert missing == LEFT_OUT.get(op_type, set())
        assert result.valid == result.found + len(report.missing)


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Replace parts of a registered rule."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    def patch(op_type: str, **changes: Any) -> None:
        rule = registry.find(op_type)
        assert rule is not None
        registry.register(replace(rule, **changes))

    yield patch


def only(op_type: str) -> oracle.OpResult:
    (result,) = oracle.run(seed=2, op_types={op_type}, sample=20).ops
    return result


def test_a_wrong_linearity_is_named(patched: Callable[..., None]) -> None:
    def indices(view: registry.OpView) -> IndexMap:
        return index_map("x_0: i j -> y_0: i j", linear=("x_0",))

    patched("relu", indices=indices)
    result = only("relu")
    assert result.wrong[0].startswith("relu with x_0 (P), y_0 (P) on mesh 2: y_0 is ")
    assert {line.partition(" on mesh ")[2].partition(": ")[0] for line in result.wrong} == {
        "2", "4", "2x2", "2:3/1", "2:2/1", "3:2/1/1", "2:3/1x2", "2x2:3/1",
    }  # fmt: skip
    assert (result.valid, result.found, result.missing) == (3, 3, ())


def test_a_reference_that_ignores_its_place_is_caught(patched: Callable[..., None]) -> None:
    rule = registry.find("gather")
    assert rule is not None

    def forgets_offset(op: LocalOp) -> dict[str, registry.Array]:
        return rule.reference(replace(op, start={name: (0, 0, 0) for name in op.start}))

    patched("gather", reference=forgets_offset)
    result = only("gather")
    assert result.wrong and all("in_0 (" in line and "P" in line for line in result.wrong)


def test_a_place_that_is_looked_at_through_strides_is_caught(patched: Callable[..., None]) -> None:
    rule = registry.find("gather")
    assert rule is not None
    whole = rule.indices
    patched("gather", indices=lambda view: replace(whole(view), in_order=frozenset()))
    result = only("gather")
    assert result.wrong
    assert all("S(" in line.partition(", indices_0")[0] for line in result.wrong)


@pytest.mark.parametrize("op_type", ["reshape", "narrow"])
def test_a_wrong_stride_is_caught(monkeypatch: pytest.MonkeyPatch, op_type: str) -> None:
    assert not only(op_type).wrong
    right = oracle.every_strided

    def halved(view: registry.OpView, count: int) -> tuple[registry.Signature, ...]:
        """Cut the results in strides of half the elements."""
        outputs = set(view.outputs)
        return tuple(
            {
                n: S(s.dim, s.stride // 2) if n in outputs and s.stride else s
                for n, s in each.items()
            }
            for each in right(view, count)
            if any((each[name].stride or 1) % 2 == 0 for name in outputs)
        )

    monkeypatch.setattr(oracle, "every_strided", halved)
    result = only(op_type)
    assert result.strided and result.wrong


def test_a_missing_cut_is_named(patched: Callable[..., None]) -> None:
    patched("relu", indices=lambda view: index_map("x_0: . i -> y_0: . i"))
    result = only("relu")
    assert (result.valid, result.found) == (3, 2)
    assert result.missing == ("relu[4x8]: x_0 S0 -> y_0 S0",)


def test_a_missing_linearity_is_named(patched: Callable[..., None]) -> None:
    patched("negative", indices=lambda view: index_map("x_0: i j -> y_0: i j"))
    assert only("negative").missing == ("negative[4x8]: x_0 P -> y_0 P",)


def test_operands_of_which_only_the_shape_is_read_do_not_count(
    patched: Callable[..., None],
) -> None:
    rule = registry.find("reduce_sum_like")
    assert rule is not None
    whole = rule.indices
    patched("reduce_sum_like", indices=lambda view: replace(whole(view), linear=()))
    missing = only("reduce_sum_like").missing
    assert missing[0] == "reduce_sum_like[4x8x12-12]: x_0 P, like_0 any -> y_0 P"
    assert len(missing) == sum(view.type == "reduce_sum_like" for view in CASES)


def test_seeds_cases_and_progress() -> None:
    told: list[tuple[int, int]] = []
    cases = (case("relu", "x_0: 4 8 -> y_0: 4 8"), case("square", "x_0: 8 -> y_0: 8"))
    types = {"relu", "square", "tanh", "unknown"}
    runs = [
        oracle.run(seed=3, op_types=types, cases=cases, progress=lambda *n: told.append(n))
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert told == [(1, 2), (2, 2)] * 2
    assert [(op.op_type, op.cases, op.valid) for op in runs[0].ops] == [
        ("relu", 1, 3), ("square", 1, 2), ("tanh", 0, 0),
    ]  # fmt: skip
    assert runs[0].completeness == 1.0
    fewer = oracle.run(seed=3, op_types=types, cases=cases, sample=2)
    assert [op.strided for op in fewer.ops] == [2 + 1 + 2, 2 + 1 + 2, 0]  # of 4, of which 8 has one
    # all on 2 devices, two on each other mesh; with one dim there are just B and S0
    assert [op.checked for op in fewer.ops] == [3 + 7 * 2, 2 + 7 * 2, 0]


def test_each_op_type_that_can_be_cut_is_cut_by_shares() -> None:
    by_shares = (Shares((3, 1)),), (Shares((2, 1, 1)),), (Shares((3, 1)), 2), (2, Shares((3, 1)))
    assert set(by_shares) < set(oracle.MESHES)
    types = cut_types(CASES, (2,))
    assert len(types) > 340
    for mesh in by_shares:
        assert cut_types(CASES, mesh) == types
    assert len(cut_types(CASES, oracle.THIRDS)) < 100
    assert cut_types(map(threefold, CASES), oracle.THIRDS) == types


def cut_types(cases: Iterable[registry.OpView], mesh: Cuts) -> set[str]:
    """Return the op types of which a signature cuts an operand."""
    return {
        view.type
        for view in cases
        for signature in nd_signatures(view, mesh)
        if any(sbp.is_split for state in signature.values() for sbp in state)
    }


def test_dims_three_times_as_long_make_the_same_op() -> None:
    """Attributes that hold sizes have the new ones, and the same dims are cut."""
    rng = np.random.default_rng(0)
    for view in CASES:
        longer = threefold(view)
        results = on_one_device(longer, sample_inputs(longer, rng))
        sizes = {name: array.shape for name, array in results.items()}
        assert sizes == {name: longer.shape[name] for name in sizes}
        lost = set(registry.labelled(view)) ^ set(registry.labelled(longer))
        assert lost <= {"cut g"}  # groups of convolutions, whose number is an attribute


def test_cut_points_that_are_off_by_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device is given its shard, and told that it begins elsewhere, or has another's."""
    types = {"matmul", "softmax", "embedding", "layer_norm_grad", "reduce_sum", "relu"}
    assert oracle.run(seed=1, op_types=types, sample=20).faults == ()
    right = simulated_tensors.pieces

    def off(array: Any, cut: Any, size: Any, axis: int) -> list[Any]:
        if not isinstance(size, Shares):
            return right(array, cut, size, axis)
        ends = [array.shape[axis] // size.total * start - 1 for start in size.starts[1:]]
        return list(np.split(array, ends, axis=axis))

    monkeypatch.setattr(simulated_tensors, "pieces", off)
    report = oracle.run(seed=1, op_types=types, sample=20)
    assert all(op.wrong for op in report.ops if op.cases)
    assert all(":" in line.partition(" on mesh ")[2].split(": ")[0] for line in report.faults)


def test_what_is_reported(patched: Callable[..., None]) -> None:
    patched("relu", indices=lambda view: index_map("x_0: . i -> y_0: . i", linear=("x_0",)))
    report = oracle.run(seed=0, op_types={"relu", "tanh"})
    relu, tanh = report.rows()
    assert len(relu) == len(report.columns)
    missing = "relu[4x8]: x_0 S0 -> y_0 S0"
    assert (relu[0], relu[1], *relu[5:]) == ("relu", "1", "2", "3", missing)
    assert (tanh[0], *tanh[4:]) == ("tanh", "0", "3", "3", "")
    assert report.missing == (missing,)
    assert report.completeness == 5 / 6
    wrong = len(report.faults)
    assert wrong > 2 and relu[4] == str(wrong)
    summary = report.summary()
    assert summary.startswith("2 op types, 2 cases: ")
    assert summary.endswith(
        f"{wrong} wrong; of 6 right one-axis signatures 1 missing (83.33% listed)"
    )
    assert json.loads(json.dumps(report.to_json()))["ops"][0]["missing"] == [missing]


def test_zeros_add_up() -> None:
    """An op without inputs in which it is linear gives zeros, which are P too."""
    view = case("zero_like", "like_0: 4 -> out_0: 4")
    found = registry.labelled(view)["P -> out_0"]
    assert {name: str(state) for name, state in found.items()} == {"like_0": "B", "out_0": "P"}
    assert linear("-> out_0").label == "P -> out_0"
