"""Profiles with other links and devices: seconds follow closed forms, and what is wrong is one line."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.scaled_profile import scaled
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE
from tests.support.clusters import cluster

SIZE = 1 << 20


def test_bandwidth_and_latency_of_one_level() -> None:
    """A ring all-gather among n takes (n - 1) α + (n - 1)/n β of all bytes; here α and β change."""
    before = cluster()
    after = scaled(before, bandwidth={"node": 4.0}, latency={"node": 0.5})
    node, gpu = Crossing("node", 4), Crossing("gpu", 4)
    empty = before.collective_s(ALL_GATHER, node, 0)
    sent = before.collective_s(ALL_GATHER, node, SIZE) - empty
    assert after.collective_s(ALL_GATHER, node, 0) == pytest.approx(0.5 * empty)
    assert after.collective_s(ALL_GATHER, node, SIZE) == pytest.approx(0.5 * empty + sent / 4)
    for collective in (ALL_GATHER, ALL_REDUCE):
        own = before.collective_s(collective, gpu, SIZE)
        assert after.collective_s(collective, gpu, SIZE) == own
    assert after.name == "made-up, links of node 4x, latency of node 0.5x"


def test_devices_compute_faster_and_launch_as_fast() -> None:
    before = cluster()
    after = scaled(before, device=2.0)
    for name, kernel in before.device.kernels.items():
        other = after.device.kernels[name]
        assert other.overhead_s == kernel.overhead_s
        for flops, moved in ((1e9, 1.0), (1.0, 1e9)):
            own_s = kernel.op_s("float32", flops, moved) - kernel.overhead_s
            assert other.op_s("float32", flops, moved) - other.overhead_s == pytest.approx(
                own_s / 2
            )
    assert after.device.memory_bytes == before.device.memory_bytes
    assert after.links == before.links and after.name == "made-up, devices 2x"


def test_nothing_changed_is_the_same_profile() -> None:
    for name in profiles.bundled():
        assert scaled(profiles.load(name)) == profiles.load(name)


def test_bundled_profiles_can_be_scaled_and_saved(tmp_path: Any) -> None:
    for name in profiles.bundled():
        known = profiles.load(name)
        level = known.links[0].level
        other = scaled(known, bandwidth={level: 2.0}, latency={level: 2.0}, device=0.5)
        other.save(tmp_path / "other.json")
        assert profiles.load(tmp_path / "other.json") == other != known


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bandwidth": {"nod": 2.0}}, "got level 'nod'; .* links of gpu, node; did you mean node"),
        ({"latency": {"\x1b[31m": 2.0}}, "got level "),
        ({"bandwidth": {"node": 0.0}}, "got 0.0; allowed are 0.001 to 1000"),
        ({"bandwidth": {"node": float("nan")}}, "got nan"),
        ({"latency": {"gpu": -1}}, "got -1"),
        ({"device": "2"}, "got '2'"),
        ({"device": True}, "got True"),
        ({"device": 1e9}, "got 1000000000.0"),
    ],
)
def test_what_is_wrong_is_one_line(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(AutoDDLError, match=expected) as error:
        scaled(cluster(), **changes)
    assert str(error.value).isprintable()
