"""Canonical states: one name for each way to lay a tensor out, found against all index sets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.sbp.canonical import canonical
from autoddl.sbp.state import B, NdSbp, P, S, ordered
from tests.sbp.shard_indices import shard_indices


def layout(state: NdSbp, shape: tuple[int, ...], mesh: tuple[int, ...]) -> tuple[object, ...]:
    """Return the elements of every device, where P is told from B."""
    held = []
    for coords in itertools.product(*map(range, mesh)):
        indices = shard_indices(shape, state, mesh, coords)
        parts = tuple(
            c for c, s, n in zip(coords, state, mesh, strict=True) if s.is_partial and n > 1
        )
        held.append((parts, tuple(tuple(i.tolist()) for i in indices)))
    return tuple(held)


@pytest.mark.parametrize("mesh", [(4,), (2, 2), (2, 1, 4), (2, 2, 2)], ids=str)
def test_same_layout_means_same_canonical_state(mesh: tuple[int, ...]) -> None:
    """All states of a vector of 16: every stride and every order."""
    names: dict[object, set[NdSbp]] = {}
    layouts: dict[NdSbp, set[object]] = {}
    strides = (None, 1, 2, 4, 8)
    for entries in itertools.product((B, P, *(S(0, s) for s in strides)), repeat=len(mesh)):
        for order in itertools.permutations(range(len(mesh))):
            state = ordered(entries, order)
            try:
                held = layout(state, (16,), mesh)
            except AutoDDLError as error:
                assert "stride" in str(error) or "pieces" in str(error)
                continue
            name = canonical(state, (16,), mesh)
            names.setdefault(held, set()).add(name)
            layouts.setdefault(name, set()).add(held)
            assert layout(name, (16,), mesh) == held
    assert len(names) > len(mesh)
    assert {len(found) for found in names.values()} == {1}
    assert {len(found) for found in layouts.values()} == {1}


@pytest.mark.parametrize(
    ("state", "shape", "mesh", "expected"),
    [
        ("S(0, 4)", (16,), (4,), "S0"),
        ("S(0, 4), S0", (16,), (2, 2), "(S0', S0)"),  # the inner axis takes the halves
        ("S(0, 8), S(0, 4)", (16,), (2, 2), "S0, S0"),
        ("S(0, 1), S0", (16,), (2, 2), "S(0, 1), S0"),
        ("S(0, 1)', S0", (16,), (2, 2), "S(0, 1), S0"),
        ("S0, S0, P", (8, 8), (2, 1, 1), "S0, B, B"),
        ("S1', S0', S1", (8, 8), (2, 2, 2), "(S1', S0, S1)"),
    ],
)
def test_by_hand(state: str, shape: tuple[int, ...], mesh: tuple[int, ...], expected: str) -> None:
    assert canonical(NdSbp.parse(state), shape, mesh) == NdSbp.parse(expected)


@given(st.data())
def test_strides_across_each_other_keep_their_layout(data: st.DataObject) -> None:
    mesh = (2, 3)
    entries = [S(0, data.draw(st.sampled_from([None, 1, 2, 3, 4, 6]))) for _ in mesh]
    state = ordered(entries, data.draw(st.permutations(range(2))))
    try:
        held = layout(state, (72,), mesh)
    except AutoDDLError:  # strides that do not divide
        return
    name = canonical(state, (72,), mesh)
    assert layout(name, (72,), mesh) == held
    assert canonical(name, (72,), mesh) == name
