"""Signatures and states in any order of the axes: right on simulated devices, and all there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.sbp.canonical import canonical
from autoddl.sbp.numpy_oracle.simulated_ops import check_signature
from autoddl.sbp.rules.candidates import in_any_order, nd_signatures
from autoddl.sbp.shards import all_states, local_shape
from autoddl.sbp.state import B, NdSbp, S, ordered
from experiments.rule_cases import case

MATMUL = case(
    "matmul", "a_0: 8 4, b_0: 4 4 -> out_0: 8 4", transpose_a=False, transpose_b=False, alpha=1.0
)


@pytest.mark.parametrize("mesh", [(2, 2), (2, 1, 2)])
@pytest.mark.parametrize(
    "view", [MATMUL, case("softmax", "in_0: 8 4 -> out_0: 8 4")], ids=lambda v: v.type
)
def test_signatures_in_any_order_are_right(view: object, mesh: tuple[int, ...]) -> None:
    plain = nd_signatures(view, mesh)  # type: ignore[arg-type]
    every = in_any_order(plain, mesh)
    assert [s for s in every if s in plain] == list(plain)
    turned = [s for s in every if s not in plain]
    assert turned
    rng = np.random.default_rng(0)
    for signature in turned:
        assert check_signature(view, signature, mesh, rng) is None  # type: ignore[arg-type]


def test_the_order_is_one_for_all_operands() -> None:
    mesh = (2, 2)
    cut = {"a_0": NdSbp((S(1), S(1))), "b_0": NdSbp((S(0), S(0)))}
    found = [
        s for s in in_any_order(nd_signatures(MATMUL, mesh), mesh)
        if all({x.dim for x in s[o]} == {x.dim for x in cut[o]} for o in cut)
    ]  # fmt: skip
    assert [tuple(str(s[o]) for o in cut) for s in found] == [
        ("(S1, S1)", "(S0, S0)"),
        ("(S1', S1)", "(S0', S0)"),
    ]
    mixed = {**found[0], "b_0": ordered(cut["b_0"], (1, 0))}
    assert check_signature(MATMUL, mixed, mesh, np.random.default_rng(0)) is not None


@pytest.mark.parametrize(
    ("shape", "mesh"), [((8, 4), (2, 2)), ((8, 2, 8), (2, 2, 2)), ((6, 4), (2, 1, 3))]
)
def test_states_in_any_order_are_all_there_are(
    shape: tuple[int, ...], mesh: tuple[int, ...]
) -> None:
    found = list(all_states(shape, mesh, any_order=True))
    plain = list(all_states(shape, mesh))
    assert len(set(found)) == len(found)
    assert [s for s in found if s in set(plain)] == plain
    expected = {
        canonical(ordered(state, order), shape, mesh)
        for state in plain
        for order in itertools.permutations(range(len(mesh)))
    }
    assert set(found) == expected
    assert all(local_shape(shape, s, mesh) for s in found)
    assert all(s[axis] == B for s in found for axis, size in enumerate(mesh) if size == 1)
