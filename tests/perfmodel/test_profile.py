"""Profiles: bad files say in one line what to do, files round-trip, look-ups take the nearest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Device, Link, Profile
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, COLLECTIVES

DEVICE = Device("cpu", 1 << 30, {"float32": 1e10}, 1e10, 1e-5, {"matmul": 1.0})
PROFILE = Profile(
    name="made-up",
    source="tests",
    kind="measured",
    device_type="cpu",
    levels=("node", "gpu"),
    links=(
        Link(ALL_REDUCE, "gpu", 2, 1e-4, 1e-9, 0.05),
        Link(ALL_REDUCE, "gpu", 8, 3e-4, 2e-9),
        Link(ALL_REDUCE, "node", 4, 1e-3, 1e-8),
        Link(ALL_GATHER, "node", 2, 2e-3, 2e-8),
    ),
    device=DEVICE,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "network.json"
    PROFILE.save(path)
    return path


def test_round_trip(file: Path) -> None:
    assert profiles.load(file) == PROFILE
    assert profiles.load(str(file)) == PROFILE


def test_a_profile_is_loaded_as_it_is() -> None:
    assert profiles.load(PROFILE) is PROFILE


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return apply


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:200])


AGAIN = "measure again with `python -m autoddl.fit_network`"
DAMAGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "missing": (Path.unlink, "no such file and no bundled profile of that name", "-o "),
    "truncated": (_cut, "not JSON", AGAIN),
    "binary": (lambda p: p.write_bytes(b"\xff\xfe\x00") and None, "can't be read", ""),
    "not a profile": (lambda p: p.write_text("[1, 2]") and None, "not a profile", "fit_network"),
    "other version": (_edit(lambda d: d.update(version=99)), "version 99, .* reads 1", AGAIN),
    "field missing": (_edit(lambda d: d.pop("device")), "damaged .*device", AGAIN),
    "field unknown": (_edit(lambda d: d.update(colour=1)), "damaged .*colour", AGAIN),
    "α negative": (
        _edit(lambda d: d["links"][0].update(alpha_s=-1e-6)),
        "alpha_s of all_reduce is -1e-06; allowed: a finite number >= 0",
        AGAIN,
    ),
    "β not a number": (
        _edit(lambda d: d["links"][1].update(beta_s_per_byte=float("nan"))),
        "beta_s_per_byte of all_reduce is nan",
        AGAIN,
    ),
    "α a text": (_edit(lambda d: d["links"][1].update(alpha_s="1")), "alpha_s .* is '1'", AGAIN),
    "wrong level": (
        _edit(lambda d: d["links"][0].update(level="rack")),
        "link in level 'rack'; levels are node, gpu",
        "",
    ),
    "wrong kind": (_edit(lambda d: d.update(kind="guess")), "allowed: measured, data sheet", ""),
    "no memory": (_edit(lambda d: d["device"].update(memory_bytes=0)), "memory_bytes is 0", AGAIN),
    "infinite rate": (
        _edit(lambda d: d["device"]["peak_flops"].update(float32=float("inf"))),
        r"peak_flops\[float32\] is inf",
        AGAIN,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(file: Path, damage: str) -> None:
    spoil, what, advice = DAMAGES[damage]
    spoil(file)
    with pytest.raises(AutoDDLError, match=what) as error:
        profiles.load(file)
    text = str(error.value)
    assert str(file) in text
    assert advice in text
    assert "\n" not in text


def test_no_default_for_other_devices() -> None:
    with pytest.raises(AutoDDLError, match=r"none is bundled for device 'cuda'; measure one with"):
        profiles.load(None, device_type="cuda")


@pytest.mark.parametrize(
    ("level", "group_size", "found"),
    [
        ("gpu", 2, ("gpu", 2)),
        ("gpu", 3, ("gpu", 2)),  # 3/2 < 8/3
        ("gpu", 4, ("gpu", 2)),  # equally near by ratio: the smaller
        ("gpu", 5, ("gpu", 8)),
        ("gpu", 64, ("gpu", 8)),
        ("node", 2, ("node", 4)),
    ],
)
def test_nearest_group_size(level: str, group_size: int, found: tuple[str, int]) -> None:
    link = PROFILE.link(ALL_REDUCE, level, group_size)
    assert (link.level, link.group_size) == found


def test_a_level_without_measurements_uses_the_outermost_with_some() -> None:
    assert PROFILE.link(ALL_GATHER, "gpu", 2).level == "node"


def test_a_collective_without_measurements() -> None:
    with pytest.raises(AutoDDLError, match=r"no measurement of all_to_all; measure with"):
        PROFILE.link("all_to_all", "gpu", 2)


def test_seconds_of_a_collective() -> None:
    # Nearest to 4 ranks is the link of 2, used with the formula for 4: 6 α + 1.5 n β.
    assert PROFILE.collective_s(ALL_REDUCE, "gpu", 4, 1e6) == pytest.approx(6e-4 + 1.5e-3)
    assert replace(PROFILE, links=()).collective_s(ALL_REDUCE, "gpu", 1, 1e6) == 0


@pytest.mark.parametrize("name", profiles.bundled())
def test_bundled_profiles_are_sane(name: str) -> None:
    profile = profiles.load(name)
    assert profile.name == name
    for collective in COLLECTIVES:
        for level in profile.levels:
            link = profile.link(collective, level, 2)
            assert 0 < link.beta_s_per_byte < 1e-6  # faster than 1 MB/s
            assert 0 <= link.alpha_s < 0.1
            assert link.mean_error is None or link.mean_error < 0.25
            small, large = (profile.collective_s(collective, level, 4, n) for n in (1e4, 1e7))
            assert 0 < small < large
    assert profile.device.peak_flops["float32"] > 1e8
    assert all(0 < share <= 1 for share in profile.device.efficiency.values())


def test_the_default_for_cpus_was_measured_on_four_ranks() -> None:
    profile = profiles.load(None)
    assert (profile.name, profile.kind, profile.levels) == ("cpu-loopback", "measured", ("gpu",))
    assert profile.source.startswith("measured with python -m autoddl.fit_network")
    assert "on 4 CPU ranks" in profile.source
    sizes = {(link.collective, link.group_size) for link in profile.links}
    assert sizes == {(collective, p) for collective in COLLECTIVES for p in (2, 4)}
