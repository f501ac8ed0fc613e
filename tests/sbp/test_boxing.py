"""Boxing: each legal primitive moves the data it says, each refused one would have garbled it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.sbp import boxing as boxing_module
from autoddl.sbp.boxing import Boxing, boxing
from autoddl.sbp.numpy_oracle import simulated_boxings
from autoddl.sbp.numpy_oracle.simulated_boxings import run_boxing
from autoddl.sbp.numpy_oracle.simulated_tensors import assemble, shard
from autoddl.sbp.shards import all_states, local_shape
from autoddl.sbp.shares import Cut, Cuts, Shares
from autoddl.sbp.state import P_MAX, P_MIN, B, NdSbp, P, S, Sbp, axis_states, ordered

SPACES = [
    ((4,), (12,)), ((4,), (8, 4)), ((4,), (4, 8, 4)),
    ((2, 2), (12,)), ((2, 2), (8, 4)), ((2, 2), (4, 8, 4)),
    ((2, 3), (12,)), ((2, 3), (6, 12)), ((2, 3), (6, 12, 6)),
    ((2, 2, 2), (24,)), ((2, 2, 2), (8, 16)),
    ((Shares((3, 1)),), (8, 4)), ((Shares((2, 1, 1)),), (4, 8, 4)), ((Shares((2, 1)),), (6, 3)),
    ((Shares((3, 1)), 2), (8, 16)), ((2, Shares((3, 1))), (8, 16)), ((2, Shares((2, 1))), (6, 12, 6)),
]  # fmt: skip


def single_changes(
    shape: tuple[int, ...], mesh: tuple[Cut, ...]
) -> Iterator[tuple[NdSbp, NdSbp, int]]:
    """Yield every pair of even states that differ on one axis."""
    for src in all_states(shape, mesh):
        for axis, state in itertools.product(range(len(mesh)), axis_states(len(shape))):
            dst = src.replace(axis, state)
            if dst != src and local_shape(shape, dst, mesh) is not None:
                yield src, dst, axis


def outcome(src: NdSbp, dst: NdSbp, shape: tuple[int, ...], mesh: Cuts) -> bool:
    """Run the boxing and tell whether the result is the same tensor in the state `dst`."""
    rng = np.random.default_rng(8)
    array = rng.normal(size=shape)
    locals_ = run_boxing(shard(array, src, mesh, rng), src, dst, shape, mesh)
    try:
        return np.allclose(assemble(locals_, dst, mesh, shape), array)
    except AutoDDLError:
        return False


@pytest.mark.parametrize(("mesh", "shape"), SPACES, ids=str)
def test_legal_primitives_are_right_and_illegal_ones_wrong(
    mesh: tuple[Cut, ...], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    legal, illegal = [], []
    for src, dst, axis in single_changes(shape, mesh):
        (illegal if boxing(src, dst, shape, mesh) is None else legal).append((src, dst, axis))
    assert legal
    assert [(s, d) for s, d, _ in legal if not outcome(s, d, shape, mesh)] == []

    for src, dst, axis in illegal:
        primitive = boxing_module._PRIMITIVES[src[axis].kind, dst[axis].kind]
        forced = Boxing(primitive, (axis,), 0)
        monkeypatch.setattr(simulated_boxings, "boxing", lambda *_, forced=forced, **__: forced)
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
        ("S0, B", "B, S0"),  # two axes, not alike
        ("S0, S1", "B, B"),
        ("S(0, 2), S(0, 2)", "B, B"),  # strides are not merged
        ("S0, B", "S0, B"),  # none
    ],
)
def test_no_single_primitive(src: str, dst: str) -> None:
    states = NdSbp.parse(src), NdSbp.parse(dst)
    assert boxing(*states, (16, 8), (2, 4)) is None
    with pytest.raises(AutoDDLError, match="no single primitive"):
        run_boxing([np.zeros(1)] * 8, *states, (16, 8), (2, 4))


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
        ("P, B", "B, B", Boxing("all_reduce", (0,), 128)),
        ("B, P", "B, B", Boxing("all_reduce", (1,), 128)),
        ("P, S0", "B, S0", Boxing("all_reduce", (0,), 32)),
        # all-gather: the gathered tensor, not the shard
        ("S0, B", "B, B", Boxing("all_gather", (0,), 128)),
        ("B, S1", "B, B", Boxing("all_gather", (1,), 128)),
        ("S0, S0", "S0, B", Boxing("all_gather", (1,), 64)),
        ("S1, S0", "B, S0", Boxing("all_gather", (0,), 32)),
        # reduce-scatter: the input, not the shard that stays
        ("P, B", "S0, B", Boxing("reduce_scatter", (0,), 128)),
        ("B, P", "B, S1", Boxing("reduce_scatter", (1,), 128)),
        ("P, S1", "S0, S1", Boxing("reduce_scatter", (0,), 32)),
        # all-to-all: the local send buffer
        ("S0, B", "S1, B", Boxing("all_to_all", (0,), 64)),
        ("B, S0", "B, S1", Boxing("all_to_all", (1,), 32)),
        ("S0, S0", "S0, S1", Boxing("all_to_all", (1,), 16)),
        # local steps: what they write
        ("B, B", "S0, B", Boxing("local", (0,), 64)),
        ("S0, B", "S0, S1", Boxing("local", (1,), 16)),
        ("B, B", "P, B", Boxing("local", (0,), 128)),
        ("S0, B", "P, B", Boxing("pad", (0,), 128)),
    ],
)
def test_elements_by_hand(src: str, dst: str, expected: Boxing) -> None:
    assert boxing(NdSbp.parse(src), NdSbp.parse(dst), (16, 8), (2, 4)) == expected


def test_a_scalar_has_one_element() -> None:
    assert boxing(NdSbp.parse("P"), NdSbp.parse("B"), (), (4,)) == Boxing("all_reduce", (0,), 1)


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


# --- neighbours together, strides, orders, reductions, uneven shards -----------------------------


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ("P, P", "B, B", Boxing("all_reduce", (0, 1), 128)),
        ("S0, S0", "B, B", Boxing("all_gather", (0, 1), 128)),
        ("P, P", "S0, S0", Boxing("reduce_scatter", (0, 1), 128)),
        ("S0, S0", "S1, S1", Boxing("all_to_all", (0, 1), 16)),
        ("B, B", "S0, S0", Boxing("local", (0, 1), 16)),
        ("S0', S0", "B, S0", Boxing("all_gather", (0,), 32)),
        ("S0', S0", "S0, B", None),  # axis 0 cuts last here
        ("S(0, 2), B", "S0, B", Boxing("all_to_all", (0,), 64)),
        ("S(0, 2), B", "B, B", Boxing("all_gather", (0,), 128)),
        ("P(max), B", "S1, B", Boxing("reduce_scatter", (0,), 128)),
    ],
)
def test_more_primitives_by_hand(src: str, dst: str, expected: Boxing | None) -> None:
    assert boxing(NdSbp.parse(src), NdSbp.parse(dst), (16, 8), (2, 4)) == expected


def test_sums_never_turn_into_maxima() -> None:
    assert boxing(NdSbp((P,)), NdSbp((P_MAX,)), (8,), (2,)) is None
    assert boxing(NdSbp((P_MIN,)), NdSbp((P_MAX,)), (8,), (2,)) is None


def entries(shape: tuple[int, ...], draw: st.DrawFn, reduction: Sbp) -> Sbp:
    kind = draw(st.sampled_from(["B", "P", "S", "S", "stride"]))
    if kind == "S" or kind == "stride":
        stride = draw(st.sampled_from([1, 2])) if kind == "stride" else None
        return S(draw(st.integers(0, len(shape) - 1)), stride)
    return B if kind == "B" else reduction


@st.composite
def spaces(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], NdSbp, NdSbp]:
    """Draw a mesh, a shape and two states that may differ anywhere."""
    mesh = tuple(draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3)))
    shape = tuple(draw(st.lists(st.sampled_from([8, 12, 24, 7]), min_size=1, max_size=2)))
    reduction = draw(st.sampled_from([P, P, P_MAX, P_MIN]))

    def state() -> NdSbp:
        order = draw(st.permutations(range(len(mesh))))
        return ordered([entries(shape, draw, reduction) for _ in mesh], order)

    src = state()
    dst = state()
    if draw(st.booleans()):  # mostly one axis, or all alike, changes
        new = dst[0]
        axes = draw(st.sampled_from([[i] for i in range(len(mesh))] + [list(range(len(mesh)))]))
        dst = NdSbp(new if i in axes else s for i, s in enumerate(src))
    return mesh, shape, src, dst


@settings(max_examples=2 * settings().max_examples)
@given(spaces())
def test_every_boxing_moves_the_right_data(
    space: tuple[tuple[int, ...], tuple[int, ...], NdSbp, NdSbp],
) -> None:
    mesh, shape, src, dst = space
    if boxing(src, dst, shape, mesh, uneven=True) is None:
        return
    assert outcome(src, dst, shape, mesh)


def test_uneven_axes_are_not_merged() -> None:
    """Six over 2 x 2 is 2 1 2 1, one cut over four devices is 2 2 1 1."""
    b, s = NdSbp.parse("B, B"), NdSbp.parse("S0, S0")
    assert boxing(b, s, (6,), (2, 2), uneven=True) is None
    assert boxing(b, s, (8,), (2, 2), uneven=True) == Boxing("local", (0, 1), 2)
    assert boxing(b, NdSbp.parse("S0, B"), (7,), (2, 2), uneven=True) == Boxing("local", (0,), 4)
    assert boxing(b, NdSbp.parse("S0, B"), (1,), (2, 2), uneven=True) is None


@pytest.mark.parametrize(
    ("mesh", "largest"), [((Shares((3, 1)), 2), 12), ((2, Shares((3, 1))), 8)], ids=str
)
def test_cuts_by_shares_are_not_merged(mesh: Cuts, largest: int) -> None:
    """Sums are: what all axes add up has no cut."""
    b, p, s = (NdSbp.parse(f"{x}, {x}") for x in ("B", "P", "S0"))
    assert boxing(p, b, (16,), mesh) == Boxing("all_reduce", (0, 1), 16)
    for src, dst in ((b, s), (s, b), (p, s)):
        assert boxing(src, dst, (16,), mesh) is None
    gathered = boxing(s, NdSbp.parse("S0, B"), (16,), mesh)
    assert gathered == Boxing("all_gather", (1,), largest)
