"""Cuts by shares: their units by hand, and shards of tensors against the elements they stand for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.sbp.canonical import canonical
from autoddl.sbp.mesh import Axis, Cluster, Mesh
from autoddl.sbp.numpy_oracle.simulated_tensors import assemble, shard
from autoddl.sbp.shards import (
    all_states,
    check_state,
    local_shape,
    pieces,
    shard_shape,
    shard_slices,
)
from autoddl.sbp.shares import Portion, Shares, cut_of, most, places, span, units
from autoddl.sbp.state import NdSbp, S

MESHES = {
    "2:3/1": (Shares((3, 1)),),
    "3:2/1/1": (Shares((2, 1, 1)),),
    "2:3/1x2": (Shares((3, 1)), 2),
    "2x2:3/1": (2, Shares((3, 1))),
    "2:2/1x2:3/1": (Shares((2, 1)), Shares((3, 1))),
}


def test_units_by_hand() -> None:
    """Eight rows by 3/1: the first six, and the last two."""
    cut = cut_of(2, (3, 1))
    assert cut == Shares((3, 1))
    assert (places(cut), units(cut), most(cut)) == (2, 4, 3)
    assert [span(cut, place) for place in range(2)] == [(0, 3), (3, 1)]
    assert [part.tolist() for part in pieces(np.arange(8), S(0), cut, 0)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7],
    ]
    assert [shard_slices((8,), NdSbp.parse("S0"), (cut,), (k,)) for k in range(2)] == [
        (slice(0, 6),),
        (slice(6, 8),),
    ]


def test_equal_shares_are_an_even_cut_and_common_divisors_go() -> None:
    assert cut_of(3, (2, 2, 2)) == cut_of(3, ()) == 3
    assert cut_of(2, (6, 2)) == Shares((3, 1))
    assert Axis("node", 2, (5, 5)) == Axis("node", 2)
    assert Mesh((Axis("node", 2, (6, 2)),)) == Mesh.parse("[node 2:3/1]")


def test_shares_equal_no_size() -> None:
    """Tables are kept by cuts: what is cut by shares must not find those of an even cut."""
    even, by_shares = Mesh.parse("2x2"), Mesh.parse("2:3/1x2")
    assert even.cuts == even.shape == by_shares.shape
    assert by_shares.cuts != even.cuts
    assert local_shape((8, 8), NdSbp.parse("S0,S1"), even.cuts) == (4, 4)
    assert local_shape((8, 8), NdSbp.parse("S0,S1"), by_shares.cuts) == (6, 4)


@pytest.mark.parametrize("text", MESHES)
def test_meshes_are_written_as_they_are_read(text: str) -> None:
    mesh = Mesh.parse(text)
    assert mesh.cuts == MESHES[text] and str(mesh) == text
    assert Mesh.parse(mesh.describe()) == mesh


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2:3", "got 1 for an axis of 2"),
        ("2:3/1/1", "got 3 for an axis of 2"),
        (
            "2:1/0",
            "got 0; allowed are whole numbers from 1 on; a device that is to do nothing is left out",
        ),
        ("2:-1/2", "got -1; allowed"),
        ("2:64/1", "65 units together; allowed are 64"),
        ("2:", "a share expected"),
        ("[node 2:3/]", "a share expected"),
    ],
)
def test_wrong_shares_are_one_line(text: str, told: str) -> None:
    with pytest.raises(AutoDDLError) as error:
        Mesh.parse(text)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_clusters_have_no_shares() -> None:
    with pytest.raises(AutoDDLError, match="cluster '2:3/1'"):
        Cluster.parse("2:3/1")


@pytest.mark.parametrize("text", MESHES)
def test_each_element_has_its_place(text: str) -> None:
    """Of all even states, those that the state says, once; slices and shapes of shards agree."""
    mesh, shape = MESHES[text], (24, 12)
    rng, whole = np.random.default_rng(0), np.arange(24 * 12.0).reshape(24, 12)
    states = list(all_states(shape, mesh))
    assert len(states) > 3
    for state in states:
        check_state(state, shape, mesh)
        locals_ = shard(whole, state, mesh, rng)
        np.testing.assert_allclose(assemble(locals_, state, mesh, shape), whole)
        coords = list(itertools.product(*(range(places(cut)) for cut in mesh)))
        largest = [0, 0]
        for rank, at in enumerate(coords):
            held = whole[shard_slices(shape, state, mesh, at)]
            assert held.shape == shard_shape(shape, state, mesh, at)
            largest = [max(a, b) for a, b in zip(largest, held.shape, strict=True)]
            if not any(sbp.is_partial for sbp in state):
                np.testing.assert_array_equal(locals_[rank], held)
        assert local_shape(shape, state, mesh) == tuple(largest)


@pytest.mark.parametrize("text", MESHES)
def test_portions_are_what_places_have(text: str) -> None:
    mesh = Mesh.parse(text)
    state = NdSbp.parse(",".join(f"S{axis}" for axis in range(mesh.ndim)))
    shape = (24,) * mesh.ndim
    asked = {local_shape(shape, state, cuts) for cuts in map(mesh.portion, range(mesh.size))}
    held = {shard_shape(shape, state, mesh.cuts, mesh.coords(rank)) for rank in range(mesh.size)}
    assert asked == held
    assert Mesh.parse("2x4").portion(5) == (2, 4)
    assert Mesh.parse("2:3/1x2").portion(2) == (Portion(1, 4, 2), 2)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 60), st.integers(1, 4))
def test_what_is_even_divides_every_place(shares: list[int], rows: int, inner: int) -> None:
    """By brute force: an inner axis cuts what each place has into equal parts."""
    cut = cut_of(len(shares), shares)
    unit, rest = divmod(rows, units(cut))
    lengths = [unit * span(cut, place)[1] for place in range(len(shares))]
    even = rest == 0 and unit > 0 and all(n % inner == 0 and n >= inner for n in lengths)
    state = NdSbp.parse("S0,S0")
    assert (local_shape((rows,), state, (cut, inner)) is not None) == even
    common = math.gcd(*lengths) if rest == 0 and unit else 0
    assert even == (rest == 0 and common > 0 and common % inner == 0)


def test_what_does_not_divide_says_so() -> None:
    state = NdSbp.parse("S0")
    assert local_shape((6,), state, (Shares((3, 1)),)) is None
    with pytest.raises(AutoDDLError, match=r"6 elements into 4 units.*shares of another sum"):
        check_state(state, (6,), (Shares((3, 1)),))
    with pytest.raises(AutoDDLError, match="9 elements into 2 units, beside shares"):
        check_state(NdSbp.parse("S0,S0"), (9,), (2, Shares((3, 1))))
    with pytest.raises(AutoDDLError, match="without a stride"):
        check_state(NdSbp.parse("S(0,1)"), (8,), (Shares((3, 1)),))
    assert local_shape((8,), NdSbp.parse("S(0,1)"), (Shares((3, 1)),)) is None


def test_canonical_forms_leave_cuts_by_shares_as_they_are() -> None:
    mesh = (Shares((3, 1)), 2)
    for text in ("S0,S0", "S0',S0", "S0,B", "S1,S0"):
        assert canonical(NdSbp.parse(text), (16, 16), mesh) == NdSbp.parse(text)
    assert canonical(NdSbp.parse("S0,S(1,8)"), (16, 16), mesh) == NdSbp.parse("S0,S1")
