"""Boxing: each legal primitive moves the data it says, each refused one would have garbled it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp import boxing as boxing_module
from autoddl.sbp import numeric
from autoddl.sbp.boxing import Boxing, boxing
from autoddl.sbp.state import NdSbp, all_states, axis_states, local_shape

SPACES = [
    ((4,), (12,)), ((4,), (8, 4)), ((4,), (4, 8, 4)),
    ((2, 2), (12,)), ((2, 2), (8, 4)), ((2, 2), (4, 8, 4)),
    ((2, 3), (12,)), ((2, 3), (6, 12)), ((2, 3), (6, 12, 6)),
    ((2, 2, 2), (24,)), ((2, 2, 2), (8, 16)), ((2, 2, 2), (8, 8, 16)),
]  # fmt: skip


def single_changes(
    shape: tuple[int, ...], mesh: tuple[int, ...]
) -> Iterator[tuple[NdSbp, NdSbp, int]]:
    """Yield every pair of even states that differ on one axis."""
    for src in all_states(shape, mesh):
        for axis, state in itertools.product(range(len(mesh)), axis_states(len(shape))):
            dst = src.replace(axis, state)
            if dst != src and local_shape(shape, dst, mesh) is not None:
                yield src, dst, axis


def outcome(src: NdSbp, dst: NdSbp, shape: tuple[int, ...], mesh: tuple[int, ...]) -> bool:
    """Run the boxing and tell whether the result is the same tensor in the state `dst`."""
    rng = np.random.default_rng(8)
    array = rng.normal(size=shape)
    locals_ = numeric.run_boxing(numeric.shard(array, src, mesh, rng), src, dst, shape, mesh)
    try:
        return np.allclose(numeric.assemble(locals_, dst, mesh, shape), array)
    except AutoDDLError:
        return False


@pytest.mark.parametrize(("mesh", "shape"), SPACES, ids=str)
def test_legal_primitives_are_right_and_illegal_ones_wrong(
    mesh: tuple[int, ...], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    legal, illegal = [], []
    for src, dst, axis in single_changes(shape, mesh):
        (illegal if boxing(src, dst, shape, mesh) is None else legal).append((src, dst, axis))
    assert legal
    assert [(s, d) for s, d, _ in legal if not outcome(s, d, shape, mesh)] == []

    for src, dst, axis in illegal:
        primitive = boxing_module._PRIMITIVES[src[axis].kind, dst[axis].kind]
        forced = Boxing(primitive, axis, 0)
        monkeypatch.setattr(numeric, "boxing", lambda *_, forced=forced: forced)
        assert not outcome(src, dst, shape, mesh), (src, dst)
    assert bool(illegal) == (len(mesh) > 1)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("S0, S0", "B, S0"),
        ("B, S0", "S0, S0"),
        ("P, S1", "S1, S1"),
        ("S0, S1", "S1, S1"),
        ("S0, S0", "S1, S0"),
        ("S0, S0", "P, S0"),
        ("S0, B", "B, S0"),  # two axes
        ("S0, B", "S0, B"),  # none
    ],
)
def test_no_single_primitive(src: str, dst: str) -> None:
    states = NdSbp.parse(src), NdSbp.parse(dst)
    assert boxing(*states, (16, 8), (2, 4)) is None
    with pytest.raises(AutoDDLError, match="no single primitive"):
        numeric.run_boxing([np.zeros(1)] * 8, *states, (16, 8), (2, 4))


@pytest.mark.parametrize(
    ("src", "dst"),
    [("S0, S0", "S0, B"), ("S0, S0", "S0, P"), ("P, S0", "B, S0"), ("S1, S0", "B, S0")],
)
def test_other_axes_do_not_hinder(src: str, dst: str) -> None:
    assert boxing(NdSbp.parse(src), NdSbp.parse(dst), (16, 8), (2, 4)) is not None


def test_uneven_states_have_no_boxing() -> None:
    assert boxing(NdSbp.parse("B"), NdSbp.parse("S0"), (6, 8), (4,)) is None
    assert boxing(NdSbp.parse("S1"), NdSbp.parse("S0"), (6, 8), (4,)) is None
    assert boxing(NdSbp.parse("B"), NdSbp.parse("S2"), (8, 8), (4,)) is None


# n of the cost formulas, per device, for 16 x 8 = 128 elements on a mesh of 2 x 4.
@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        # all-reduce: the full tensor of the group
        ("P, B", "B, B", Boxing("all_reduce", 0, 128)),
        ("B, P", "B, B", Boxing("all_reduce", 1, 128)),
        ("P, S0", "B, S0", Boxing("all_reduce", 0, 32)),
        # all-gather: the gathered tensor, not the shard
        ("S0, B", "B, B", Boxing("all_gather", 0, 128)),
        ("B, S1", "B, B", Boxing("all_gather", 1, 128)),
        ("S0, S0", "S0, B", Boxing("all_gather", 1, 64)),
        ("S1, S0", "B, S0", Boxing("all_gather", 0, 32)),
        # reduce-scatter: the input, not the shard that stays
        ("P, B", "S0, B", Boxing("reduce_scatter", 0, 128)),
        ("B, P", "B, S1", Boxing("reduce_scatter", 1, 128)),
        ("P, S1", "S0, S1", Boxing("reduce_scatter", 0, 32)),
        # all-to-all: the local send buffer
        ("S0, B", "S1, B", Boxing("all_to_all", 0, 64)),
        ("B, S0", "B, S1", Boxing("all_to_all", 1, 32)),
        ("S0, S0", "S0, S1", Boxing("all_to_all", 1, 16)),
        # local steps: what they write
        ("B, B", "S0, B", Boxing("local", 0, 64)),
        ("S0, B", "S0, S1", Boxing("local", 1, 16)),
        ("B, B", "P, B", Boxing("local", 0, 128)),
        ("S0, B", "P, B", Boxing("pad", 0, 128)),
    ],
)
def test_elements_by_hand(src: str, dst: str, expected: Boxing) -> None:
    assert boxing(NdSbp.parse(src), NdSbp.parse(dst), (16, 8), (2, 4)) == expected


def test_a_scalar_has_one_element() -> None:
    assert boxing(NdSbp.parse("P"), NdSbp.parse("B"), (), (4,)) == Boxing("all_reduce", 0, 1)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_elements_give_the_bytes_that_rings_move(p: int) -> None:
    """Count what a device receives in each algorithm and compare with (p-1)/p n of the formulas."""
    n = 64
    received = {
        ("P", "B"): 2 * (p - 1) * (n // p),  # p - 1 steps of a chunk, twice
        ("S0", "B"): (p - 1) * (n // p),  # every other shard
        ("P", "S0"): (p - 1) * (n // p),  # the own chunk from every other device
        ("S0", "S1"): (p - 1) * (n // p // p),  # a block of every other shard
    }
    for (src, dst), elements in received.items():
        box = boxing(NdSbp.parse(src), NdSbp.parse(dst), (8, 8), (p,))
        assert box is not None
        rounds = 2 if box.primitive == "all_reduce" else 1
        assert math.isclose(rounds * (p - 1) / p * box.elements, elements)
