"""Meshes: notation, row-major ranks, and the groups of collectives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Axis, Mesh

meshes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple).map(Mesh.parse)


NOTATIONS = ["2x4", "2×4", "2, 4", "(2, 4)", (2, 4), [2, 4], "[node 2][gpu 4]"]


@pytest.mark.parametrize("notation", NOTATIONS)
def test_notations(notation: object) -> None:
    mesh = Mesh.parse(notation)
    assert mesh == Mesh((Axis("node", 2), Axis("gpu", 4)))
    assert (mesh.shape, mesh.size, mesh.ndim) == ((2, 4), 8, 2)
    assert str(mesh) == "2x4"
    assert mesh.describe() == "[node 2][gpu 4]"


def test_levels_fill_from_the_innermost() -> None:
    assert Mesh.parse("4").describe() == "[gpu 4]"
    assert Mesh.parse("2x2x2").describe() == "[node 2][gpu 2][gpu 2]"
    assert Mesh.parse("2x2", levels=("gpu",)).describe() == "[gpu 2][gpu 2]"
    assert Mesh.parse("2x3x4", levels=("rack", "node", "gpu")).describe() == (
        "[rack 2][node 3][gpu 4]"
    )


@given(meshes)
def test_print_and_parse_round_trip(mesh: Mesh) -> None:
    assert Mesh.parse(mesh.describe()) == mesh
    assert Mesh.parse(str(mesh)) == mesh


@pytest.mark.parametrize("bad", ["", "x", "2x", "2.5", "-2", "two", "[gpu]", (2.5,), ("2",)])
def test_bad_notations(bad: object) -> None:
    with pytest.raises(AutoDDLError, match="mesh: got"):
        Mesh.parse(bad)


@pytest.mark.parametrize("bad", ["0", "2x0", (2, 0), "[node 2][gpu 0]", (-1,)])
def test_sizes_start_at_one(bad: object) -> None:
    with pytest.raises(AutoDDLError, match="must be >= 1"):
        Mesh.parse(bad)


def test_no_axes() -> None:
    with pytest.raises(AutoDDLError, match="got no axes"):
        Mesh(())
    with pytest.raises(AutoDDLError, match="got no axes"):
        Mesh.parse(())


@given(meshes)
def test_ranks_are_row_major(mesh: Mesh) -> None:
    coords = [mesh.coords(rank) for rank in range(mesh.size)]
    assert coords == list(itertools.product(*map(range, mesh.shape)))


@pytest.mark.parametrize("rank", [-1, 8])
def test_ranks_outside(rank: int) -> None:
    with pytest.raises(AutoDDLError, match=r"rank -?\d is outside 0\.\.7"):
        Mesh.parse("2x4").coords(rank)


def test_groups_by_hand() -> None:
    mesh = Mesh.parse("2x3")
    assert list(mesh.groups(0)) == [(0, 3), (1, 4), (2, 5)]
    assert list(mesh.groups(1)) == [(0, 1, 2), (3, 4, 5)]


@given(meshes)
def test_groups_differ_in_their_axis_only(mesh: Mesh) -> None:
    for axis in range(mesh.ndim):
        groups = list(mesh.groups(axis))
        assert sorted(itertools.chain(*groups)) == list(range(mesh.size))
        for group in groups:
            coords = [mesh.coords(rank) for rank in group]
            assert [c[axis] for c in coords] == list(range(mesh.shape[axis]))
            assert len({c[:axis] + c[axis + 1 :] for c in coords}) == 1
