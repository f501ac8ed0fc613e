"""Rules: what they list is right, wrong ones are caught, OneFlow's own lists are what is accepted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.errors import RuleError
from autoddl.sbp.numpy_oracle.simulated_ops import check_signature
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.candidates import nd_signatures
from autoddl.sbp.rules.registry import IndexMap, OpRule, OpView, index_map, linear, signatures
from autoddl.sbp.rules.shape import matching_leaders
from autoddl.sbp.shards import local_shape
from autoddl.sbp.state import NdSbp
from experiments.rule_cases import CASES, case, case_id
from tests.sbp.missing_signatures import missing_signatures

FAMILIES = {
    "matmul", "conv", "elementwise", "reduction", "normalisation", "embedding", "memory",
    "optimizer",
}  # fmt: skip

# One-axis signatures that OneFlow 0.9 itself lists for such ops, all-broadcast left out.
ENGINE_LISTS = {
    "matmul[8x4-12x4]": "S0 B S0; B S0 S1; S1 S1 P; P B P; B P P",
    "batch_matmul[4x8x4-4x8x12]": "S0 S0 S0; S2 B S1; B S2 S2; S1 S1 P; P B P; B P P",
    "broadcast_matmul[4x8x12-4x12]": "S0 B S0; S1 B S1; B S0 S2; S2 S1 P; P B P; B P P",
    "broadcast_matmul_grad_b[4x8x12-4x8x4]": "S0 S0 P; S1 S1 P; S2 B S0; B S2 S1",
    "broadcast_add[4x8x12-12]": "S0 B S0; S1 B S1; S2 S0 S2; P P P",
    "broadcast_mul[4x8x12-12]": "S0 B S0; S1 B S1; S2 S0 S2; B P P; P B P",
    "broadcast_div[4x8x12-12]": "S0 B S0; S1 B S1; S2 S0 S2; P B P",
    "broadcast_div_grad[0d-0d-0d]": "P B B P; B B P P",
    "broadcast_like[4x1-4x8]": "S0 S0 S0; B S1 S1; P P P; P B P; B P B",
    "reduce_sum_like[4x8x12-12]": "S0 B P; S0 P P; S1 B P; S1 P P; S2 S0 S0; B P B",
    "reduce_sum[4x8x12]": "S0 S0; S1 P; S2 S2; P P",
    "relu_grad[4x8-4x8]": "S0 S0 S0; S1 S1 S1",
    "gelu_grad[4x8-4x8]": "S0 S0 S0; S1 S1 S1; P B P",
    "softmax[4x8x12]": "S0 S0; S1 S1",
    "softmax_grad[4x8x12-4x8x12]": "S0 S0 S0; S1 S1 S1",
    "bias_add[4x8x4x4-8]": "S0 B S0; S1 S0 S1; S2 B S2; S3 B S3",
    "gather[16x4-4x8]": "B S0 S0; B S1 S1; S0 B P; S1 B S2",
    "unsorted_segment_sum_like[4x8x4-4x8-16x4]": (
        "S0 S0 B P; S1 S1 B P; S2 B S1 S1; P B B P; B B S0 S0; S0 S0 P P; S1 S1 P P; P B P P"
    ),
    "nll[8x12-8]": "S0 S0 S0 S0; S1 B P P",
    "nll_grad[8-8x12-8]": "S0 S0 S0 S0; B S1 B S1",
    "conv2d[4x4x5x6-8x4x3x3]": "S0 B S0",
    "conv_filter_grad[4x24x4x4-4x12x7x8]": "S0 S0 P",
    "max_pool_2d[4x8x4x8]": "S0 S0 S0; S1 S1 S1",
    "slice[12x8x4]": "S1 S1; S2 S2; P P",
    "momentum_update[4x8-4x8-4x8-1]": "S0 S0 S0 B; S1 S1 S1 B",
}

BY_ID = {case_id(view): view for view in reversed(CASES)}


def refused(op_type: str, engine: str | None) -> frozenset[str]:
    return engines.model(engine).limits.refused.get(op_type, frozenset())


def text(view: OpView, signature: registry.Signature) -> str:
    return " ".join(str(signature[name]) for name in view.inputs + view.outputs)


def even(view: OpView, size: int, engine: str | None = None) -> list[registry.Signature]:
    return [
        signature
        for signature in signatures(view, refused=refused(view.type, engine))
        if all(local_shape(view.shape[n], (s,), (size,)) is not None for n, s in signature.items())
    ]


def test_every_op_type_has_cases_which_run_on_two_devices() -> None:
    assert {rule.op_type for rule in registry.all_rules()} == {view.type for view in CASES}
    rng = np.random.default_rng(2)
    some = [(view, nd_signatures(view, (2,))[-1]) for view in CASES]
    assert [f for view, one in some if (f := check_signature(view, one, (2,), rng))] == []


@pytest.mark.parametrize("view", CASES, ids=case_id)
def test_products_over_three_axes_are_right(view: OpView) -> None:
    """Fewer axes are proven by experiments.proofs.oracle."""
    mesh = (2, 2, 2)
    found = nd_signatures(view, mesh)
    found = tuple(random.Random(0).sample(found, min(3, len(found))))
    rng = np.random.default_rng(1)
    faults = [check_signature(view, signature, mesh, rng) for signature in found]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("name", ENGINE_LISTS)
def test_signatures_equal_the_engines(name: str) -> None:
    view = BY_ID[name]
    ours = {text(view, signature) for signature in even(view, 4, ONEFLOW)}
    assert ours - {" ".join("B" * len(view.inputs + view.outputs))} == set(
        ENGINE_LISTS[name].split("; ")
    )


def test_flops_and_families() -> None:
    wrong = []
    for view in CASES:
        rule = registry.find(view.type)
        assert rule is not None
        flop = rule.flops(view)
        none = rule.family == "memory" or view.type == "gather"
        if rule.family not in FAMILIES or flop < 0 or (flop == 0) != none:
            wrong.append((case_id(view), rule.family, flop))
    assert wrong == []


def test_flops_by_hand() -> None:
    def flops(name: str) -> float:
        rule = registry.find(BY_ID[name].type)
        assert rule is not None
        return rule.flops(BY_ID[name])

    assert flops("matmul[8x4-12x4]") == 2 * 8 * 4 * 12
    assert flops("batch_matmul[4x8x4-4x8x12]") == 2 * 4 * 4 * 8 * 12
    assert flops("broadcast_matmul[4x8x12-12x4]") == 2 * 4 * 8 * 12 * 4
    assert flops("broadcast_matmul_grad_b[4x8x12-4x8x4]") == 2 * 4 * 8 * 12 * 4
    assert flops("conv2d[4x4x5x6-8x4x3x3]") == 2 * 4 * 8 * 5 * 6 * 4 * 3 * 3
    forward = 2 * 4 * 24 * 4 * 4 * 4 * 2 * 2  # three groups of 4 channels
    assert flops("conv2d[4x12x7x8-24x4x2x2-24]") == forward
    assert flops("conv_data_grad[4x24x4x4-24x4x2x2-4x12x7x8]") == forward
    assert flops("conv_filter_grad[4x24x4x4-4x12x7x8]") == forward
    assert flops("softmax[4x8x12]") == 5 * 4 * 8 * 12
    assert flops("add_n[4x8-4x8-4x8]") == 2 * 4 * 8


@pytest.mark.parametrize("name", [n for n in BY_ID if n.startswith(("conv", "matmul", "batch_"))])
def test_cut_work_is_shared_evenly(name: str) -> None:
    view, size = BY_ID[name], 2
    rule = registry.find(view.type)
    assert rule is not None
    for signature in even(view, size):
        if any(state.is_split for state in signature.values()):
            local = {n: local_shape(view.shape[n], (s,), (size,)) for n, s in signature.items()}
            part = replace(view, shape=local)
            assert rule.flops(part) * size == rule.flops(view)


@pytest.mark.parametrize(
    ("source", "target", "leaders"),
    [
        ((8, 96), (8, 3, 4, 8), ((0, 0), (1, 1))),
        ((2, 3, 4), (6, 4), ((0, 0), (2, 1))),
        ((6, 4), (4, 6), ((0, 0),)),
        ((1, 8, 1, 4), (8, 2, 2, 1), ((1, 0), (3, 1))),
        ((4, 2, 6), (8, 3, 2), ((0, 0), (2, 1))),
        ((1, 1), (), ()),
    ],
)
def test_matching_leaders(
    source: tuple[int, ...], target: tuple[int, ...], leaders: tuple[tuple[int, int], ...]
) -> None:
    assert matching_leaders(source, target) == leaders
    assert matching_leaders(target, source) == tuple((j, i) for i, j in leaders)


def test_matching_leaders_refuses_other_sizes() -> None:
    with pytest.raises(RuleError, match=r"\(4, 6\) to \(5, 5\)"):
        matching_leaders((4, 6), (5, 5))


# --- wrong rules are caught ------------------------------------------------------------------


def fault(view: OpView, states: str, mesh: tuple[int, ...] = (2,)) -> str | None:
    names = view.inputs + view.outputs
    parsed = dict(zip(names, map(NdSbp.parse, states.split("; ")), strict=True))
    return check_signature(view, parsed, mesh, np.random.default_rng(3))


@pytest.mark.parametrize(
    ("name", "states", "why"),
    [
        ("relu[4x8]", "P; P", "y_0 is"),
        ("scalar_add[4x8]", "P; P", "out_0 is"),
        ("broadcast_add[8x4-8x4]", "B; P; P", "z_0 is"),
        ("broadcast_mul[8x4-8x4]", "P; P; P", "z_0 is"),
        ("broadcast_div[8x4-8x4]", "B; P; P", "z_0 is"),
        ("broadcast_add[4x8x12-8x1]", "S1; S1; S1", "1 elements into 2 pieces"),
        ("gelu_grad[4x8-4x8]", "B; P; P", "dx_0 is"),
        ("matmul[8x4-12x4]", "S1; S1; B", "replicas differ"),
        ("matmul[8x4-12x4]", "P; P; P", "out_0 is"),
        ("reshape[4x6x8]", "S1; S1", "evenly"),
        ("reshape[8x8x12]", "S2; S3", "out_0 is"),
        ("softmax[4x8x12]", "S2; S2", "out_0 is"),
        ("var[4x8x12]", "S2; P", "output_0 is"),
        ("reduce_sum[4x8x12]", "S1; B", "replicas differ"),
        ("slice[12x8x4]", "S0; S0", "y_0"),
        ("gather[16x4-4x8]", "S0; B; B", "replicas differ"),
        ("conv2d[4x4x5x6-8x4x3x3]", "S3; B; S3", "out_0 is"),
        ("momentum_update[4x8-4x8-4x8-1]", "B; P; B; B", "replicas differ"),
        ("momentum_update[4x8-4x8-4x8-1]", "S0; S1; S0; B", "can't run"),
    ],
)
def test_wrong_signatures_are_caught(name: str, states: str, why: str) -> None:
    found = fault(BY_ID[name], states)
    assert found is not None
    assert name.partition("[")[0] in found
    assert why in found


def test_several_axes_are_wrong_together() -> None:
    """Each axis alone may be right where both are not: 4 of 8 rows, then an uneven rest."""
    view = case("reshape", "in_0: 8 3 -> out_0: 4 6", shape=(4, 6))
    assert fault(view, "S0,B; S0,B", (4, 2)) is None
    assert "evenly" in str(fault(view, "S0,S0; S0,S0", (4, 2)))


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[OpRule], None]]:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    yield lambda rule: registry.register(rule)


def test_a_reference_without_offset_is_caught(patched: Callable[[OpRule], None]) -> None:
    rule = registry.find("gather")
    assert rule is not None

    def forgets_offset(op: registry.LocalOp) -> dict[str, np.ndarray]:
        return rule.reference(replace(op, start={name: (0, 0, 0) for name in op.start}))

    patched(replace(rule, reference=forgets_offset))
    assert "out_0 is" in str(fault(BY_ID["gather[16x4-4x8]"], "S0; B; P"))


def test_a_missing_signature_is_named(patched: Callable[[OpRule], None]) -> None:
    rule = registry.find("relu")
    assert rule is not None
    patched(replace(rule, indices=lambda view: index_map("x_0: . i -> y_0: . i")))
    view = BY_ID["relu[4x8]"]
    missing = missing_signatures(view, 2, np.random.default_rng(4))
    assert [text(view, signature) for signature in missing] == ["S0 S0"]


# --- the registry ----------------------------------------------------------------------------


def test_an_unknown_op_is_all_broadcast() -> None:
    view = case("celu", "in_0: 4 8 -> out_0: 4 8")
    assert registry.find("celu") is None
    assert [text(view, signature) for signature in signatures(view)] == ["B B"]


def test_an_engine_refuses_by_label() -> None:
    """One operand repeats dim 2: only where both have equally many dims does OneFlow cut it."""
    equal = BY_ID["broadcast_add[1x8-4x1]"]
    other = BY_ID["broadcast_add[4x8x12-8x1]"]
    assert set(registry.labelled(equal)) == {"B", "cut d0", "cut d1", "P x_0 y_0"}
    assert set(registry.labelled(other)) == {"B", "cut d0", "cut d1", "cut r2", "P x_0 y_0"}
    repeated = registry.labelled(other)["cut r2"]
    assert text(other, repeated) == "S2 B S2"
    labels = refused("broadcast_add", ONEFLOW)
    assert repeated in signatures(other) and repeated not in signatures(other, refused=labels)
    assert len(signatures(equal, refused=labels)) == len(signatures(equal))
    assert refused("broadcast_add", None) == frozenset()


def test_an_index_map_is_read() -> None:
    imap = index_map("a_0: i k, b_0: k . -> out_0: i .", summed="k", linear=("a_0", "a_0 b_0"))
    assert imap == IndexMap(
        {"a_0": ("i", "k"), "b_0": ("k", None), "out_0": ("i", None)},
        frozenset("k"),
        (linear("a_0"), linear("a_0 b_0")),
    )
    with pytest.raises(RuleError, match="lacks ':'"):
        index_map("a i k -> out: i")


def test_an_index_neither_kept_nor_summed_is_not_cut(patched: Callable[[OpRule], None]) -> None:
    rule = registry.find("relu")
    assert rule is not None
    patched(replace(rule, indices=lambda view: index_map("x_0: i j -> y_0: . j")))
    view = BY_ID["relu[4x8]"]
    assert [text(view, signature) for signature in signatures(view)] == ["B B", "S1 S1"]


def test_a_map_that_does_not_fit_is_an_error(patched: Callable[[OpRule], None]) -> None:
    rule = registry.find("relu")
    assert rule is not None
    patched(replace(rule, indices=lambda view: index_map("x_0: i -> y_0: i")))
    with pytest.raises(RuleError, match=r"relu: operand x_0 has shape \(4, 8\)"):
        signatures(BY_ID["relu[4x8]"])
