"""States: notation, local shapes, and which part of a tensor each device holds."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shards import all_states, check_state, local_shape, shard_shape, shard_slices
from autoddl.sbp.state import P_MAX, P_MIN, B, NdSbp, P, S, Sbp, axis_states, broadcast, ordered
from tests.sbp.shard_indices import shard_indices

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


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("", "<-- HERE"),
        ("()", "( <-- HERE )"),
        ("S", "S <-- HERE"),
        ("S-1", "S <-- HERE -1"),
        ("s0", "<-- HERE s0"),
        ("B, X", "B,  <-- HERE X"),
        ("S0;B", "S0 <-- HERE ;B"),
        ("S0,,B", "S0, <-- HERE ,B"),
        ("(S0", "(S0 <-- HERE"),
        ("S0 B", "S0  <-- HERE B"),
        ("S 0", "S <-- HERE  0"),
        ("S(0", "S(0 <-- HERE"),
        ("S(0, 0)", "S(0,  <-- HERE 0)"),
        ("B, P(avg)", "B, P( <-- HERE avg)"),
        ("Broadcast", "<-- HERE Broadcast"),
        ("S0:(1,x)", "S0:(1, <-- HERE x)"),
        ("S0:2", "S0: <-- HERE 2"),
    ],
)
def test_parse_errors_quote_the_text_and_mark_the_place(text: str, marked: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        NdSbp.parse(text)
    message = str(caught.value)
    assert repr(text) in message and repr(marked) in message
    assert "allowed are S<dim>, S(<dim>)" in message and "\n" not in message


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


# --- strides, orders, reductions, uneven shards -------------------------------------------------


@pytest.mark.parametrize("text", ["(S(0, 2), B)", "(S0', S0)", "(P(max), S1)", "(S(1, 4)', S1, B)"])
def test_rich_states_round_trip(text: str) -> None:
    assert str(NdSbp.parse(text)) == text
    assert pickle.loads(pickle.dumps(NdSbp.parse(text))) == NdSbp.parse(text)


def test_equal_states_are_one_object() -> None:
    assert S(3) is S(3) is Sbp("S", 3) is NdSbp.parse("B, S3")[1]
    assert Sbp("P", reduction="max") is P_MAX is not P
    assert pickle.loads(pickle.dumps(S(0, 4))) is S(0, 4)


def test_turns_are_canonical() -> None:
    assert NdSbp((S(0).later(3), S(0).later(1))) == NdSbp.parse("(S0', S0)")
    assert NdSbp((S(0).later(2), S(1))) == NdSbp.parse("S0, S1")
    assert ordered((S(0), S(0), S(0)), (2, 0, 1)) == NdSbp.parse("(S0', S0', S0)")
    assert ordered((S(0), S(1)), (1, 0)) == NdSbp.parse("S0, S1")
    assert NdSbp.parse("(S0', S0)").cutting(0) == (1, 0)
    with pytest.raises(AutoDDLError, match="name each of the 2 axes once"):
        ordered((S(0), S(0)), (0, 0))


def test_reductions_do_not_mix() -> None:
    with pytest.raises(AutoDDLError, match="different reductions"):
        NdSbp((P, P_MAX))
    assert str(NdSbp((P_MIN, B, P_MIN))) == "(P(min), B, P(min))"


def indices_by_hand(length: int, cuts: list[tuple[int, int | None, int]]) -> list[int]:
    """Deal 0 … length-1 out, one (size, stride, place) after the other, element by element."""
    held = list(range(length))
    for size, stride, place in cuts:
        if stride is None:
            counts = [len(held) // size + (k < len(held) % size) for k in range(size)]
            start = sum(counts[:place])
            held = held[start : start + counts[place]]
        else:
            held = [x for i, x in enumerate(held) if i // stride % size == place]
    return held


@given(st.data())
def test_indices_are_dealt_out_as_said(data: st.DataObject) -> None:
    mesh = tuple(data.draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3)))
    strides = [data.draw(st.sampled_from([None, None, 1, 2])) for _ in mesh]
    even = math.prod(mesh) * 2 ** sum(s is not None for s in strides)
    length = even * data.draw(st.integers(1, 2))
    if not any(strides):
        length += data.draw(st.integers(0, 5))
    order = data.draw(st.permutations(range(len(mesh))))
    state = ordered([S(0, s) for s in strides], order)
    seen = []
    for coords in itertools.product(*map(range, mesh)):
        expected = indices_by_hand(length, [(mesh[i], strides[i], coords[i]) for i in order])
        (found,) = shard_indices((length,), state, mesh, coords)
        assert found.tolist() == expected
        assert shard_shape((length,), state, mesh, coords) == (len(expected),)
        seen += expected
    assert sorted(seen) == list(range(length))


def test_strided_shards_by_hand() -> None:
    """Rhino §4.1: (T, 3, H) flattened to T·3·H, with H cut in two, is a cut in turns of H / 2."""
    whole = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    for k in range(2):
        (indices,) = shard_indices((24,), NdSbp((S(0, 2),)), (2,), (k,))
        assert indices.tolist() == whole[:, :, 2 * k : 2 * k + 2].ravel().tolist()


def test_uneven_shards_by_hand() -> None:
    sizes = [shard_shape((7,), NdSbp((S(0),)), (4,), (k,)) for k in range(4)]
    assert sizes == [(2,), (2,), (2,), (1,)]
    nested = [
        shard_shape((5,), NdSbp((S(0), S(0))), (2, 2), (i, j)) for i in range(2) for j in range(2)
    ]
    assert nested == [(2,), (1,), (1,), (1,)]


@pytest.mark.parametrize(
    ("text", "shape", "mesh", "why"),
    [
        ("S2, B", (8, 4), (2, 2), r"S2 cuts dim 2; the tensor's dims are 0\.\.1"),
        ("S0", (), (2,), "it is a scalar"),
        ("S0", (3,), (4,), "3 elements into 4 pieces"),
        ("S0, S0", (3,), (2, 2), "1 elements into 2 pieces"),
        ("S(0, 3)", (8,), (2,), "deals 8 elements to 2 devices in turns of 3; the stride must divide 4"),
        ("B", (8,), (2, 2), "1 entries for 2 axes"),
    ],
)  # fmt: skip
def test_impossible_states_are_explained(
    text: str, shape: tuple[int, ...], mesh: tuple[int, ...], why: str
) -> None:
    state = NdSbp.parse(text)
    with pytest.raises(AutoDDLError, match=why):
        check_state(state, shape, mesh)
    with pytest.raises(AutoDDLError, match=why):
        shard_indices(shape, state, mesh, (0,) * len(mesh))


# --- AutoDDL's notation ---------------------------------------------------------------------------

MESH = Mesh.parse("[node 2][gpu 2][gpu 2]")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("B, S0, B", "S0:(1,2), B:(2,2)"),
        ("B, B, S0", "B:(2,2), S0:(1,2)"),
        ("S0, S0, S0", "S0:(2,4)"),
        ("S0, S0, B", "S0:(2,2), B:(1,2)"),
        ("S0, B, S0", "B:(1,2), S0:(2,2)"),
        ("S0, B, P", "S0:(2,1), B:(1,2), P:(1,2)"),
        ("P, S1, S1", "P:(2,1), S1:(1,4)"),
    ],
)
def test_device_counts(state: str, text: str) -> None:
    assert NdSbp.parse(state).describe(MESH) == text
    assert NdSbp.parse(text, MESH) == NdSbp.parse(state)


@given(st.data())
def test_device_counts_round_trip(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    levels = data.draw(st.sampled_from([("gpu",), ("node", "gpu"), ("rack", "node", "gpu")]))
    mesh = Mesh.parse(tuple(sizes), levels)
    entries = [
        data.draw(st.sampled_from([B, P, S(0), S(1), S(0, 2)])) if size > 1 else B for size in sizes
    ]
    state = NdSbp(entries)
    assert NdSbp.parse(state.describe(mesh), mesh) == state


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("S0:(1,3), B:(2,1)", r"level \[gpu 4\] do not fill its axes \(2, 2\)"),
        ("S0:(1,2)", r"level \[node 2\] do not fill its axes"),
        ("S0:(2), B:(1,4)", "S0 has 1 device counts, cluster .* has 2 levels"),
        ("S0:(2,4), B", "B has none device counts"),
        ("S0, B", "2 entries, mesh 2x2x2 has 3 axes"),
    ],
)
def test_device_counts_that_do_not_fit(text: str, why: str) -> None:
    with pytest.raises(AutoDDLError, match=why) as caught:
        NdSbp.parse(text, MESH)
    assert repr(text) in str(caught.value)
    with pytest.raises(AutoDDLError, match="need a mesh"):
        NdSbp.parse("S0:(1,2), B:(2,2)")
