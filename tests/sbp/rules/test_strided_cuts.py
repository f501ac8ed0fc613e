"""Cuts with strides: through reshapes, beside NumPy's, through pieces, and along several axes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.sbp.canonical import apart, canonical, joined, strided_states
from autoddl.sbp.numpy_oracle.simulated_tensors import assemble, shard
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.rules.strided_cuts import reshaped, with_cut
from autoddl.sbp.shards import pieces
from autoddl.sbp.state import B, NdSbp, S, Sbp
from experiments.rule_cases import case

SHAPES = [
    (24,),
    (2, 12),
    (12, 2),
    (4, 6),
    (6, 4),
    (2, 3, 4),
    (4, 3, 2),
    (1, 24),
    (2, 1, 12),
    (3, 8),
]


def cuts(shape: tuple[int, ...], count: int) -> list[Sbp]:
    """Return the plain cut and the strided ones of every dim."""
    found = []
    for dim, size in enumerate(shape):
        if size % count == 0:
            strides = [n for n in range(1, size // count) if size % (count * n) == 0]
            found += [S(dim), *(S(dim, n) for n in strides)]
    return found


def held(shape: tuple[int, ...], cut: Sbp, count: int) -> list[list[int]]:
    """Return the flat numbers of the elements of every part."""
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return [part.ravel().tolist() for part in pieces(numbers, cut, count, cut.dim)]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("source", SHAPES, ids=str)
def test_parts_have_the_same_elements(source: tuple[int, ...], count: int) -> None:
    for target, cut in itertools.product(SHAPES, cuts(source, count)):
        same = [
            c for c in cuts(target, count) if held(target, c, count) == held(source, cut, count)
        ]
        found = reshaped(cut, source, target, count)
        assert ([] if found is None else [found]) == same, (source, target, cut)


QKV = case("reshape", "in_0: 4 24 -> out_0: 4 3 4 2")
THIRD = case("narrow", "in_0: 4 24 -> out_0: 4 8", dim=1, start=8, length=8)


@pytest.mark.parametrize(
    ("view", "operand", "cut", "count", "expected"),
    [
        (QKV, "out_0", S(2), 2, {"in_0": S(1, 4), "out_0": S(2)}),  # heads
        (QKV, "out_0", S(3), 2, {"in_0": S(1, 1), "out_0": S(3)}),
        (QKV, "in_0", S(1, 4), 2, {"in_0": S(1, 4), "out_0": S(2)}),
        (QKV, "in_0", S(1, 6), 2, None),  # across the heads
        (THIRD, "out_0", S(1), 2, {"in_0": S(1, 4), "out_0": S(1)}),
        (THIRD, "in_0", S(1, 4), 2, {"in_0": S(1, 4), "out_0": S(1)}),
        (THIRD, "in_0", S(1, 2), 2, {"in_0": S(1, 2), "out_0": S(1, 2)}),
        (THIRD, "in_0", S(1), 2, None),
        (THIRD, "in_0", S(0, 1), 2, {"in_0": S(0, 1), "out_0": S(0, 1)}),
    ],
    ids=str,
)
def test_signatures_by_hand(
    view: OpView, operand: str, cut: Sbp, count: int, expected: dict[str, Sbp] | None
) -> None:
    assert with_cut(view, operand, cut, count) == expected


def test_what_an_engine_refuses_it_refuses_with_strides() -> None:
    view = case("relu", "x_0: 8 -> y_0: 8")
    assert with_cut(view, "x_0", S(0, 2), 2) is not None
    assert with_cut(view, "x_0", S(0, 2), 2, refused=frozenset({"cut d0"})) is None


def test_axes_part_a_period_one_after_the_other() -> None:
    """Heads of (3, heads, size) over two axes are the same as over one of as many devices."""
    state = joined((S(0, 4), S(0, 4)), (24,), (2, 2))
    assert state is not None and state == (S(0, 4), S(0, 2))
    rng = np.random.default_rng(0)
    both = shard(np.arange(24), state, (2, 2), rng)
    flat = shard(np.arange(24), NdSbp([S(0, 2)]), (4,), rng)
    for one, other in zip(both, flat, strict=True):
        np.testing.assert_array_equal(one, other)
    assert joined((S(0, 2), S(0, 4)), (24,), (2, 2)) == (S(0, 2), S(0, 2))  # heads, then in them
    assert joined((S(0), S(0, 4)), (24,), (2, 2)) is None  # 12 elements are no whole periods of 8


def test_states_with_strides_are_canonical_and_hold_all_elements() -> None:
    shape, mesh, rng = (24, 4), (2, 2), np.random.default_rng(0)
    cuts = [(S(0, 4), S(0, 1))] * 2
    states = list(strided_states(shape, mesh, cuts))
    assert len(states) == len(set(states)) > 12
    assert (S(0, 4), S(0, 2)) in states and (B, S(0, 1)) in states
    array = rng.normal(size=shape)
    for state in states:
        assert canonical(state, shape, mesh) == state
        assert any(sbp.stride is not None for sbp in state)
        np.testing.assert_allclose(
            assemble(shard(array, state, mesh, rng), state, mesh, shape), array
        )
        again = apart(state, shape, mesh)
        assert again is not None and joined(again, shape, mesh) == state
