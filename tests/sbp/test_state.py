"""States: notation, local shapes, and which part of a tensor each device holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.sbp.state import (
    B,
    NdSbp,
    P,
    S,
    all_states,
    axis_states,
    broadcast,
    local_shape,
    shard_slices,
)

sbps = st.one_of(st.just(B), st.just(P), st.integers(0, 12).map(S))
nd_sbps = st.lists(sbps, min_size=1, max_size=4).map(NdSbp)


@given(nd_sbps)
def test_print_and_parse_round_trip(state: NdSbp) -> None:
    text = str(state)
    assert NdSbp.parse(text) == state
    assert NdSbp.parse(text.strip("()").replace(" ", "")) == state
    assert NdSbp.parse(", ".join(f"S({s.dim})" if s.is_split else str(s) for s in state)) == state


def test_notation() -> None:
    assert str(NdSbp((S(0), B, P))) == "(S0, B, P)"
    assert repr(S(3)) == "S3"
    assert NdSbp.parse("S(0),B") == (S(0), B)
    assert NdSbp.parse(" (S10) ") == (S(10),)


@pytest.mark.parametrize("text", ["", "()", "S", "S-1", "s0", "X", "S0;B", "S0,,B", "(S0", "S0 B"])
def test_parse_errors_show_the_text(text: str) -> None:
    with pytest.raises(AutoDDLError, match="allowed are S<dim>, B, P"):
        NdSbp.parse(text)


def test_negative_dims_are_refused() -> None:
    with pytest.raises(AutoDDLError, match=r"S\(-1\)"):
        S(-1)


def test_states_are_values() -> None:
    assert S(1) == S(1) != S(2)
    assert hash(NdSbp((S(0), B))) == hash(NdSbp.parse("S0, B"))
    state = NdSbp((S(0), B, P))
    assert state.replace(1, S(2)) == (S(0), S(2), P)
    assert isinstance(state.replace(1, S(2)), NdSbp)
    assert state == (S(0), B, P)  # unchanged
    assert broadcast(2) == (B, B)


@pytest.mark.parametrize(
    ("shape", "state", "mesh", "expected"),
    [
        ((12, 8), "S0, B", (2, 3), (6, 8)),
        ((12, 8), "S0, S0", (2, 3), (2, 8)),
        ((12, 8), "S1, S0", (2, 3), (4, 4)),
        ((12, 8), "P, P", (2, 3), (12, 8)),
        ((12, 8), "B, S1", (2, 3), None),  # 8 over 3
        ((6, 8), "S0, S0", (2, 2), None),  # 6, then 3 over 2
        ((12,), "S1, B", (2, 3), None),  # no such dim
        ((0, 8), "S0, B", (2, 3), None),  # nothing to share
        ((), "B, P", (2, 3), ()),
    ],
)
def test_local_shape(
    shape: tuple[int, ...], state: str, mesh: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    assert local_shape(shape, NdSbp.parse(state), mesh) == expected


def test_the_outer_axis_cuts_first() -> None:
    state = NdSbp.parse("S0, S0")
    starts = [
        shard_slices((12,), state, (2, 3), coords)[0].start
        for coords in itertools.product(range(2), range(3))
    ]
    assert starts == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("mesh", [(4,), (2, 3), (2, 2, 2)], ids=str)
def test_shards_cover_every_element_equally_often(mesh: tuple[int, ...]) -> None:
    shape = (12, 8, 24)
    for state in all_states(shape, mesh, partial=False):
        count = np.zeros(shape, dtype=int)
        for coords in itertools.product(*map(range, mesh)):
            part = shard_slices(shape, state, mesh, coords)
            assert count[part].shape == local_shape(shape, state, mesh)
            count[part] += 1
        copies = [size for size, sbp in zip(mesh, state, strict=True) if sbp == B]
        assert np.all(count == np.prod(copies, dtype=int))


def test_uneven_slices_are_an_error() -> None:
    for shape, text in (((5, 4), "S0"), ((4,), "S1")):
        with pytest.raises(AutoDDLError, match="does not cut shape"):
            shard_slices(shape, NdSbp.parse(text), (2,), (0,))


def test_enumeration() -> None:
    assert axis_states(2) == (B, S(0), S(1), P)
    assert axis_states(1, partial=False) == (B, S(0))
    assert len(set(all_states((8, 8), (2, 2)))) == 16
    assert set(all_states((2, 3), (2, 2))) == {
        NdSbp(pair) for pair in itertools.product((B, S(0), P), repeat=2) if pair != (S(0), S(0))
    }
