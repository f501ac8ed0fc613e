"""Profiles of several kinds of devices: what a group of them is priced by."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.roofline import OpWork, device_s, op_s
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_REDUCE
from tests.support.clusters import cluster, of_two_kinds

ALIKE = cluster()
LINKS = (
    Link(ALL_REDUCE, "gpu", 2, 1e-5, 1e-9, kinds=("fast",)),
    Link(ALL_REDUCE, "gpu", 2, 2e-5, 5e-10, kinds=("slow",)),
    Link(ALL_REDUCE, "node", 2, 1e-4, 1e-8, kinds=("fast",)),
    Link(ALL_REDUCE, "node", 2, 2e-4, 3e-8, kinds=("slow",)),
    Link(ALL_REDUCE, "node", 2, 5e-4, 2e-8, kinds=("fast", "slow")),
)


def mixed(links: tuple[Link, ...] = LINKS) -> Profile:
    return replace(of_two_kinds(ALIKE), links=links)


def test_an_op_takes_as_long_as_on_the_slowest_of_its_devices() -> None:
    """One kind may be slow in flop, another in bytes."""
    profile = of_two_kinds(ALIKE)
    wide = replace(profile.devices["slow"], kernels={}, memory_bytes_per_s=1e15)
    profile = replace(
        profile, devices={"fast": replace(profile.devices["fast"], kernels={}), "slow": wide}
    )
    for work in (OpWork("x", "y", "float32", 1e9, 0.0), OpWork("x", "y", "float32", 0.0, 1e9)):
        each = [device_s(device, work) for device in profile.devices.values()]
        assert op_s(profile, work) == max(each) != min(each)
        for kind, seconds in zip(("fast", "slow"), each, strict=True):
            assert op_s(profile.part([kind]), work) == seconds


@pytest.mark.parametrize(
    ("kinds", "level", "alpha_s", "beta"),
    [
        (("fast",), "node", 1e-4, 1e-8),
        (("slow",), "node", 2e-4, 3e-8),
        (("slow", "fast", "fast"), "node", 5e-4, 3e-8),  # the slowest of all links between them
        (("fast",), "gpu", 1e-5, 1e-9),
        (("fast", "slow"), "gpu", 2e-5, 1e-9),
    ],
)
def test_a_collective_takes_as_long_as_its_slowest_link(
    kinds: tuple[str, ...], level: str, alpha_s: float, beta: float
) -> None:
    found = mixed().part(kinds).link(ALL_REDUCE, Crossing(level, 2))
    assert (found.alpha_s, found.beta_s_per_byte, found.kinds) == (alpha_s, beta, ())


def test_links_of_equal_kinds_alone_price_no_mixed_group() -> None:
    """A group of four spans both kinds; what was measured among four fast ones is not its price."""
    quick = Link(ALL_REDUCE, "node", 4, 1e-6, 1e-12, kinds=("fast",))
    found = mixed((*LINKS, quick)).part(("fast", "slow")).link(ALL_REDUCE, Crossing("node", 4))
    assert found.beta_s_per_byte == 3e-8


def test_the_memory_is_that_of_the_device_that_has_least() -> None:
    profile = of_two_kinds(ALIKE)
    small = replace(profile.devices["slow"], memory_bytes=1000)
    profile = replace(profile, devices={**profile.devices, "slow": small})
    assert profile.memory_bytes == profile.part(["slow", "fast"]).memory_bytes == 1000
    assert profile.part(["fast"]).memory_bytes == profile.devices["fast"].memory_bytes


def test_a_profile_of_one_kind_is_its_own_part() -> None:
    assert ALIKE.part(()) is ALIKE


def test_what_is_not_known_is_told_in_one_line() -> None:
    for profile, kinds, words in (
        (mixed(), ["a100"], "no kind 'a100'; its kinds are fast, slow; measure again"),
        (
            ALIKE,
            ["fast", "slow"],
            "no kind 'fast'; its kinds are none, all are alike; measure again",
        ),
        (mixed(LINKS[:4]), ["fast", "slow"], "no link between fast and slow; measure again"),
        (mixed(), [], "devices of kinds fast, slow; say which node is what, cluster='2*fastx4"),
    ):
        with pytest.raises(AutoDDLError, match=words.replace("*", r"\*")) as caught:
            profile.part(kinds)
        assert "\n" not in str(caught.value)


def test_of_several_lines_the_slower_ones_of_both_kinds_count() -> None:
    """Their minimum is never below what either kind takes; algorithms that one lacks are left out."""
    lines = (
        *(
            Link(ALL_REDUCE, "gpu", 2, a, b, kinds=("fast",))
            for a, b in ((1e-6, 1e-9), (1e-5, 1e-10))
        ),
        *(
            Link(ALL_REDUCE, "gpu", 2, a, b, kinds=("slow",))
            for a, b in ((3e-6, 5e-9), (2e-5, 5e-11))
        ),
        Link(ALL_REDUCE, "gpu", 2, 1e-7, 1e-12, kinds=("fast",), algorithm="nvls"),
    )
    profile, way = mixed((*lines, LINKS[-1])), Crossing("gpu", 2)
    both = profile.part(("fast", "slow"))
    found = {(link.alpha_s, link.beta_s_per_byte) for link in both.lines(ALL_REDUCE, way)}
    assert found == {(3e-6, 5e-9), (2e-5, 1e-10)}
    for n in (1e2, 1e4, 1e6, 1e8):
        for kind in ("fast", "slow"):
            alone = profile.part((kind,)).collective_s(ALL_REDUCE, way, n)
            assert both.collective_s(ALL_REDUCE, way, n) >= alone
