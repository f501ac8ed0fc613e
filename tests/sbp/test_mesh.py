"""Meshes: notation, row-major ranks, and the groups of collectives."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import MOST_AXES, Axis, Cluster, Mesh

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


@pytest.mark.parametrize(
    ("bad", "marked"),
    [
        ("", "<-- HERE"),
        ("x", "<-- HERE x"),
        ("2x", "2x <-- HERE"),
        ("2xx4", "2x <-- HERE x4"),
        ("2.5", "<-- HERE 2.5"),
        ("-2", "<-- HERE -2"),
        ("two", "<-- HERE two"),
        ("(2, 4", "(2, 4 <-- HERE"),
        ("2x4)", "2x4 <-- HERE )"),
        ("[gpu]", "[gpu <-- HERE ]"),
        ("[node 2][gpu", "[node 2][gpu <-- HERE"),
        ("[node 2] x [gpu 2]", "[node 2]  <-- HERE x [gpu 2]"),
        ("2x0", "2x <-- HERE 0"),
        ("0", "<-- HERE 0"),
        ("[node 2][gpu 0]", "[node 2][gpu <-- HERE  0]"),
    ],
)
def test_bad_notations_are_quoted_with_the_place(bad: str, marked: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        Mesh.parse(bad)
    message = str(caught.value)
    assert f"mesh {bad!r}" in message and repr(marked) in message
    assert "allowed are sizes such as '4', '2x4'" in message


@pytest.mark.parametrize("bad", [(2.5,), ("2",), (2, 0), (-1,), (True,)])
def test_bad_sizes(bad: object) -> None:
    with pytest.raises(AutoDDLError, match="sizes are whole numbers >= 1"):
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


def test_groups_over_several_axes() -> None:
    mesh = Mesh.parse("2x2x3")
    assert list(mesh.groups(0, 1)) == [(0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11)]
    assert list(mesh.groups(0, 1, 2)) == [tuple(range(12))]
    assert next(mesh.groups(0, 2)) == (0, 1, 2, 6, 7, 8)


def test_a_level_lies_in_one_piece() -> None:
    with pytest.raises(AutoDDLError, match="level gpu is cut in two by node"):
        Mesh.parse("[gpu 2][node 2][gpu 2]")


# --- clusters ---------------------------------------------------------------------------------


def test_a_mesh_lies_on_its_cluster() -> None:
    assert str(Mesh.parse("2x2x2").cluster) == "[node 2][gpu 4]"
    assert Cluster.parse("2x4") == Mesh.parse("2x4").cluster
    assert Cluster.parse("[rack 3][node 2][gpu 8]").size == 48


def test_meshes_by_hand() -> None:
    found = [mesh.describe() for mesh in Cluster.parse("2x4").meshes()]
    assert found == ["[node 2][gpu 4]", "[node 2][gpu 2][gpu 2]"]
    found = [str(mesh) for mesh in Cluster.parse("12", levels=("gpu",)).meshes()]
    assert found[0] == "12" and sorted(found[1:]) == [
        "2x2x3", "2x3x2", "2x6", "3x2x2", "3x4", "4x3", "6x2"
    ]  # fmt: skip
    assert [str(m) for m in Cluster.parse("4x8").meshes(max_axes=2)] == ["4x8"]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=3))  # nine axes at most
def test_meshes_are_all_and_each_once(sizes: list[int]) -> None:
    cluster = Cluster.parse(tuple(sizes), levels=("rack", "node", "gpu")[-len(sizes) :])
    meshes = list(cluster.meshes())
    expected = 1
    for size in sizes:
        expected *= sum(
            math.prod(factors) == size
            for n in range(5)
            for factors in itertools.product(range(2, size + 1), repeat=n)
        )
    assert len(meshes) == len(set(meshes)) == expected
    assert [mesh.ndim for mesh in meshes] == sorted(mesh.ndim for mesh in meshes)
    for mesh in meshes:
        counts = {level.name: level.size for level in mesh.cluster.levels}
        assert all(counts.get(level.name, 1) == level.size for level in cluster.levels)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[node 2][node 2]", "level node twice"),
        ("[node 2][gpu", r"cluster '\[node 2\]\[gpu': a size expected"),
    ],
)
def test_bad_clusters(text: str, why: str) -> None:
    with pytest.raises(AutoDDLError, match=why):
        Cluster.parse(text)


def test_meshes_of_more_axes_than_can_be_are_left_out() -> None:
    meshes = list(Cluster.parse("1024x8").meshes())
    assert max(mesh.ndim for mesh in meshes) == MOST_AXES
    with pytest.raises(AutoDDLError, match="mesh: got 10 axes; allowed are 9 at most"):
        Mesh.parse("x".join("2" * 10))
    with pytest.raises(
        AutoDDLError, match="cluster: got 1099511627776 devices; allowed are 1048576"
    ):
        Cluster.parse((2**40,))
