"""Profiles of unlike nodes, put together of measurements of their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.calibration import kinds_profile
from autoddl.perfmodel.profile import ALIKE, Profile, from_json
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_REDUCE
from tests.support.clusters import cluster

_DEVICE = cluster().device


def measured(
    speed: float, alpha_s: float, levels: tuple[str, ...] = ("node", "gpu"), **other: Any
) -> Profile:
    """Return what nodes that are all alike look like, so many times as fast."""
    links = tuple(Link(ALL_REDUCE, level, 2, alpha_s, 1e-9) for level in levels)
    device = replace(_DEVICE, memory_bytes_per_s=speed * _DEVICE.memory_bytes_per_s)
    return Profile(
        "n", f"x{speed:g}", "measured", "cpu", levels, links, {ALIKE: device}, mode="graph", **other
    )


def test_three_measurements_make_a_profile() -> None:
    profile = kinds_profile.of_kind(measured(2, 1e-5), "fast")
    profile = kinds_profile.joined(profile, measured(1, 2e-5), ("slow",))
    profile = kinds_profile.joined(profile, measured(1, 9e-5), ("fast", "slow"))
    assert profile.kinds == ("fast", "slow")
    speeds = [d.memory_bytes_per_s / _DEVICE.memory_bytes_per_s for d in profile.devices.values()]
    assert speeds == [2, 1]
    for kinds, outside, inside in (
        (("fast",), 1e-5, 1e-5), (("slow",), 2e-5, 2e-5), (("fast", "slow"), 9e-5, 2e-5),
    ):  # fmt: skip
        part = profile.part(kinds)
        assert part.link(ALL_REDUCE, Crossing("node", 2)).alpha_s == outside
        assert part.link(ALL_REDUCE, Crossing("gpu", 2)).alpha_s == inside
    assert profile.source == "x2; slow: x1; fast, slow: x1"
    assert from_json(profile.encoded(), "it") == profile


def test_a_later_measurement_takes_the_place_of_an_earlier_one() -> None:
    profile = kinds_profile.of_kind(measured(2, 1e-5), "fast")
    profile = kinds_profile.joined(profile, measured(1, 2e-5), ("slow",))
    again = kinds_profile.joined(profile, measured(4, 3e-5), ("fast",))
    assert len(again.links) == len(profile.links)
    assert again.part(["fast"]).link(ALL_REDUCE, Crossing("node", 2)).alpha_s == 3e-5
    assert again.part(["slow"]) == replace(profile.part(["slow"]), source=again.source)


def test_a_kind_with_a_single_node_has_the_inner_levels() -> None:
    one = kinds_profile.of_kind(measured(1, 2e-5, ("gpu",)), "slow")
    both = kinds_profile.joined(one, measured(2, 1e-5), ("fast",))
    assert both.levels == ("node", "gpu")
    again = kinds_profile.joined(both, measured(1, 3e-5, ("gpu",)), ("slow",))
    assert again.levels == ("node", "gpu")


def test_levels_have_the_worst_that_was_seen() -> None:
    def of(share: float) -> Mapping[str, Any]:
        return {
            what: {"node": share} for what in ("sharing", "overlap", "interference", "overhead")
        }

    one = kinds_profile.of_kind(measured(1, 1e-5, **of(0.25)), "a")
    both = kinds_profile.joined(one, measured(1, 1e-5, **of(0.75)), ("b",))
    assert (both.shared("node"), both.overlapped("node"), both.slowed("node")) == (0.75, 0.25, 0.75)
    assert both.overhead == {"node": 0.75}


@pytest.mark.parametrize(
    ("base", "new", "kinds", "complaint"),
    [
        (measured(1, 1e-5), measured(1, 1e-5), ("a",), "its devices are all alike; measure those"),
        (
            "a",
            measured(1, 1e-5),
            ("a", "b"),
            "no kind 'b'; its kinds are a; measure nodes of b first",
        ),
        (
            "a",
            replace(measured(1, 1e-5), mode="eager"),
            ("b",),
            "in mode graph, this in mode eager",
        ),
        ("a", measured(1, 1e-5, ("rack", "node")), ("b",), "levels node, gpu, this has rack, node"),
    ],
)
def test_what_does_not_go_together(
    base: Any, new: Profile, kinds: tuple[str, ...], complaint: str
) -> None:
    if isinstance(base, str):
        base = kinds_profile.of_kind(measured(1, 1e-5), base)
    with pytest.raises(AutoDDLError) as error:
        kinds_profile.joined(base, new, kinds)
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_a_device_takes_the_place_of_those_that_were_alike() -> None:
    """Links without kinds are the same for all."""
    base = measured(1, 1e-5)
    fast = replace(_DEVICE, name="fast one")
    one = kinds_profile.with_device(base, "fast", fast, "here")
    both = kinds_profile.with_device(one, "slow", _DEVICE, "there")
    assert both.kinds == ("fast", "slow") and both.links == base.links
    assert both.devices["fast"].name == "fast one"
    assert both.part(["fast", "slow"]).link(ALL_REDUCE, Crossing("node", 2)).alpha_s == 1e-5
