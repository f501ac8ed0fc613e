"""Groups and the links they cross, counted device by device."""

from __future__ import annotations

import itertools

import pytest

from autoddl.perfmodel.topology import Crossing, crossing
from autoddl.sbp.mesh import Mesh

MESHES = (
    "2x4", "4", "[gpu 2][gpu 3]", "[node 2][node 3][gpu 2]", "[node 3][gpu 2][gpu 2]",
    "[node 2][gpu 1][gpu 4]", "[rack 2][node 3][gpu 2]", "[rack 2][node 2][node 2][gpu 2][gpu 3]",
    "[node 1][gpu 4]",
)  # fmt: skip
CASES = [
    (text, axes)
    for text in MESHES
    for count in range(1, Mesh.parse(text).ndim + 1)
    for axes in itertools.combinations(range(Mesh.parse(text).ndim), count)
]


def counted(mesh: Mesh, axes: tuple[int, ...]) -> Crossing | None:
    """Enumerate devices, units and groups: whose members lie in several units crosses their links."""
    levels = list(dict.fromkeys(axis.level for axis in mesh.axes))
    groups = list(mesh.groups(*axes))
    for level in levels:
        depth = max(i for i, axis in enumerate(mesh.axes) if axis.level == level) + 1
        units: dict[tuple[int, ...], set[int]] = {}
        for rank in range(mesh.size):
            units.setdefault(mesh.coords(rank)[:depth], set()).add(rank)
        outside: dict[tuple[int, ...], set[int]] = {}
        for rank in range(mesh.size):
            start = min(i for i, axis in enumerate(mesh.axes) if axis.level == level)
            outside.setdefault(mesh.coords(rank)[:start], set()).add(rank)
        found = set()
        for unit in units.values():
            crossers = [g for g in groups if unit & set(g) and not set(g) <= unit]
            inside = {len(unit & set(g)) for g in crossers}
            if crossers:
                assert len(inside) == 1
                count = len(crossers)
                if level == "gpu":  # then all groups of one node count
                    (node,) = (devices for devices in outside.values() if devices & unit)
                    count = sum(bool(node & set(g)) for g in groups)
                found.add(Crossing(level, len(groups[0]), inside.pop(), count))
        assert len(found) <= 1
        if found:
            return found.pop()
    return None  # groups of one device cross nothing


@pytest.mark.parametrize(("text", "axes"), CASES)
def test_crossing_is_what_counting_gives(text: str, axes: tuple[int, ...]) -> None:
    mesh = Mesh.parse(text)
    expected = counted(mesh, axes)
    found = crossing(mesh, axes, "gpu")
    if expected is None:
        assert found.group_size == 1
    else:
        assert found == expected


def test_groups_between_nodes_share_the_link_of_each_node() -> None:
    mesh = Mesh.parse("[node 2][node 2][gpu 4]")
    assert crossing(mesh, (0,), "gpu") == Crossing("node", 2, inner=1, groups=4)
    assert crossing(mesh, (0, 1), "gpu") == Crossing("node", 4, inner=1, groups=4)
    assert crossing(mesh, (1, 2), "gpu") == Crossing("node", 8, inner=4, groups=1)
    assert crossing(mesh, (2,), "gpu") == Crossing("gpu", 4, inner=1, groups=1)


def test_groups_inside_a_node_are_those_of_the_node() -> None:
    mesh = Mesh.parse("[node 2][gpu 2][gpu 4]")
    assert crossing(mesh, (1,), "gpu") == Crossing("gpu", 2, inner=1, groups=4)
    assert crossing(mesh, (2,), "gpu") == Crossing("gpu", 4, inner=1, groups=2)


def test_nodes_of_one_device() -> None:
    """Without an axis inside them, nodes are still not the innermost level."""
    assert crossing(Mesh.parse("[node 4][node 2]"), (0,), "gpu") == Crossing("node", 4, 1, 1)
