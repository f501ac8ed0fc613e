"""Clusters of several kinds of nodes: their notation, and what is wrong with one."""

from __future__ import annotations

import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.mesh import Cluster, Level


@pytest.mark.parametrize(
    ("text", "sizes", "kinds"),
    [
        ("3*v100x4 + 1*t4x4", (4, 4), ("v100", "v100", "v100", "t4")),
        ("2*a+1*b +  1*a", (4,), ("a", "a", "b", "a")),
        ("2*fastx1 + 2*slowx1", (4, 1), ("fast", "fast", "slow", "slow")),
        ("1*a100-sxm.2x8 + 1*rtx_6000x8", (2, 8), ("a100-sxm.2", "rtx_6000")),
        ("1*v100x8 + 1*v100x4", (2, 8), ("v100", "v100")),
        ("2*ax2 + 1*bx3 + 1*ax1", (4, 3), ("a", "a", "b", "a")),
    ],
)
def test_the_notation_is_read_and_written(
    text: str, sizes: tuple[int, ...], kinds: tuple[str, ...]
) -> None:
    found = Cluster.parse(text)
    assert tuple(level.size for level in found.levels) == sizes
    assert found.kinds == kinds
    assert Cluster.parse(str(found)) == found


def test_on_one_level_every_device_has_a_kind() -> None:
    found = Cluster.parse("1*ax2 + 1*bx2", ["gpu"])
    assert str(found) == "2*a + 2*b" and found.levels == (Level("gpu", 4),)


def test_nodes_may_have_unlike_sizes() -> None:
    found = Cluster.parse("1*ax2 + 2*bx1 + 1*ax3")
    assert found.size == 7 and found.unit_sizes == (2, 1, 1, 3)
    assert [found.unit(device) for device in range(7)] == [0, 0, 1, 2, 3, 3, 3]
    assert [found.unit(device, 1) for device in range(7)] == list(range(7))
    assert "".join(found.kind(device) for device in range(7)) == "aabbaaa"
    assert list(found.meshes()) == []  # no mesh spans them
    assert Cluster.parse("1*ax2 + 1*ax2").sizes == ()
    alone = Cluster.parse("1*ax2 + 1*bx3", ["gpu"])
    assert (alone.levels, str(alone)) == ((Level("gpu", 5),), "2*a + 3*b")


def test_units_are_counted_over_the_whole_cluster() -> None:
    found = Cluster.parse("[rack 2][node 3][gpu 4]")
    for device in range(24):
        units = [found.unit(device, level) for level in range(3)]
        assert units == [device // 12, device // 4, device]


def test_each_device_has_the_kind_of_its_node() -> None:
    found = Cluster.parse("1*ax2 + 2*bx2")
    assert [found.kind(rank) for rank in range(6)] == ["a", "a", "b", "b", "b", "b"]
    assert Cluster.parse("2x2").kind(3) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2*fast + 2*slowx2", "a size for each kind expected, or for none"),
        ("2*fastx2 + 2*slow", "a size for each kind expected, or for none"),
        ("0*ax4", "a number from 1 to 1048576 expected"),
        ("3*v100x4 + ", "a count of nodes expected"),
        ("3*v100x4 - 1*t4x4", "a kind expected"),
        ("3*4", "a kind expected"),
        ("9999999*ax4", "a number from 1 to 1048576 expected"),
    ],
)
def test_one_line_for_what_is_no_cluster(text: str, words: str) -> None:
    with pytest.raises(AutoDDLError, match=r"HERE") as caught:
        Cluster.parse(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert "'3*v100x4 + 1*t4x4'" in str(caught.value)


def test_there_are_not_too_many_devices() -> None:
    with pytest.raises(AutoDDLError, match="4000000 devices; allowed are 1048576 at most"):
        Cluster.parse("1000000*ax4")


def test_kinds_cover_the_nodes() -> None:
    with pytest.raises(AutoDDLError, match="1 kinds for 2 nodes"):
        Cluster((Level("node", 2), Level("gpu", 4)), ("a",))


@pytest.mark.parametrize(
    ("levels", "kinds", "sizes"),
    [
        ((2, 4), ("a", "a"), (4,)),
        ((2, 4), ("a", "a"), (4, 0)),
        ((2, 4), ("a", "a"), (2, 1)),  # the inner level is that of the largest
        ((2, 4), (), (4, 2)),
        ((2,), ("a", "a"), (4, 2)),
    ],
)
def test_sizes_cover_the_nodes(
    levels: tuple[int, ...], kinds: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    named = tuple(map(Level, ("node", "gpu"), levels))
    with pytest.raises(AutoDDLError, match=r"sizes for 2 nodes \(.*\); give one >= 1 for each"):
        Cluster(named, kinds, sizes)
