"""Samples of two made-up ranks become points, links and a device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.calibration.measurements import device_of, links_of, seconds_of, sharing_of
from autoddl.perfmodel.profile_entries import Link
from autoddl.perfmodel.roofline import OpWork, device_s

OVERHEAD_S, PEAK, BANDWIDTH = 1e-5, 1e10, 5e9


def sample(seconds: float, **fields: Any) -> dict[str, Any]:
    """Return samples of an operation of that time: 4 of it on top of a twin of 1 ms."""
    return {"chain_s": [1e-3 + 4 * seconds] * 3, "twin_s": [1e-3] * 3, "steps": 4, **fields}


def case(n: int, factor: float = 1.0) -> dict[str, Any]:
    taken = collectives.seconds("all_gather", 2, n, alpha_s=1e-4, beta_s_per_byte=1e-9)
    return sample(factor * taken, collective="all_gather", group_size=2, size_bytes=n)


def points_of(ranks: Sequence[Sequence[dict[str, Any]]]) -> list[Point]:
    """Return a point per case, from those of all ranks."""
    kinds = [
        (s[0]["collective"], s[0]["size_bytes"], seconds_of(s)) for s in zip(*ranks, strict=True)
    ]
    return [Point(name, "gpu", 2, size, seconds) for name, size, seconds in kinds]


def device_samples() -> dict[str, Any]:
    def family(flops: float, efficiency: float) -> dict[str, Any]:
        taken = OVERHEAD_S + flops / (PEAK * efficiency)
        return sample(taken, flops=flops, moved_bytes=0.0)

    return {
        "overhead": sample(OVERHEAD_S, flops=1.0, moved_bytes=8.0),
        "bandwidth": sample(OVERHEAD_S + 1e7 / BANDWIDTH, flops=1.0, moved_bytes=1e7),
        "matmul": family(1e8, 1.0),
        "conv": family(1e7, 0.25),
        "elementwise": family(1e7, 2.0),
    }


def test_a_repetition_lasts_until_the_slowest_rank_is_done() -> None:
    ranks = [
        {"chain_s": [1.0, 9.0, 4.0], "twin_s": [0.5, 0.5, 0.5], "steps": 2},
        {"chain_s": [3.0, 3.0, 5.0], "twin_s": [0.0, 1.0, 1.0], "steps": 2},
    ]
    # Slowest ranks: 3, 9, 5 and 0.5, 1, 1; lower quartiles 4 and 0.75.
    assert seconds_of(ranks) == pytest.approx((4.0 - 0.75) / 2)


def test_links() -> None:
    ranks = [[case(1 << 14), case(1 << 17), case(1 << 20)]] * 2
    (link,) = links_of(points_of(ranks))
    assert (link.collective, link.level, link.group_size) == ("all_gather", "gpu", 2)
    assert (link.alpha_s, link.beta_s_per_byte) == pytest.approx((1e-4, 1e-9))
    assert link.mean_error == pytest.approx(0, abs=1e-9)


def test_too_few_points_for_a_link() -> None:
    with pytest.raises(AutoDDLError, match=r"no link has two message sizes .*; measure again when"):
        links_of(points_of([[case(1 << 14)]]))


def test_a_link_with_one_point_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good = points_of([[case(1 << 14), case(1 << 17)]])
    lonely = Point("all_reduce", "gpu", 2, 1e6, 1e-3)
    with caplog.at_level(logging.WARNING):
        links = links_of([*good, lonely])
    assert [link.collective for link in links] == ["all_gather"]
    assert "all_reduce over 2 ranks of level gpu has too few points" in caplog.text


def test_a_bad_fit_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    ranks = [[case(1 << 14), case(1 << 16, 4), case(1 << 18, 0.2), case(1 << 20, 5)]]
    with caplog.at_level(logging.WARNING):
        links_of(points_of(ranks))
    assert "α and β miss the measured times by" in caplog.text


def points(groups: int, beta: float, **kind: Any) -> list[Point]:
    """Return exact points of an all-gather between four nodes."""
    fields = {"collective": "all_gather", "level": "node", "group_size": 4, **kind}
    return [
        Point(
            size_bytes=n,
            seconds=collectives.seconds(
                fields["collective"], fields["group_size"], n, alpha_s=1e-4, beta_s_per_byte=beta
            ),
            groups=groups,
            **fields,
        )
        for n in (1e4, 1e5, 1e6, 1e7)
    ]


def test_every_kind_of_group_is_a_link_of_its_own() -> None:
    kinds = [
        points(1, 1e-9), points(2, 2e-9), points(1, 3e-9, inner=2), points(1, 4e-9, level="gpu"),
        points(1, 5e-9, group_size=2), points(1, 6e-9, collective="send_receive", group_size=2),
    ]  # fmt: skip
    links = links_of([point for kind in kinds for point in kind])
    assert sorted(link.beta_s_per_byte for link in links) == pytest.approx(
        [1e-9, 2e-9, 3e-9, 4e-9, 5e-9, 6e-9]
    )
    found = {round(link.beta_s_per_byte * 1e9): link for link in links}
    assert found[2].groups == 2 and found[3].inner == 2 and found[4].level == "gpu"
    assert found[5].group_size == 2 and found[6].collective == "send_receive"
    assert all(link.r2 is not None and link.r2 > 0.999 for link in links)
    assert all(link.alpha_interval_s is not None for link in links)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_sharing_is_what_concurrent_groups_were_slowed_down_by(share: float) -> None:
    counts = (2, 4, 8)  # one group alone was not measured
    betas = {g: 1e-9 * (1 + share * (g - 1)) for g in counts}
    links = links_of([point for g in counts for point in points(g, betas[g])])
    assert sharing_of(links, ("node", "gpu")) == {"node": pytest.approx(share, abs=1e-3)}


def test_sharing_is_told_by_the_lines_of_large_messages() -> None:
    lines = [
        Link("all_reduce", "node", 2, alpha, beta, groups=groups)
        for groups, factor in ((1, 1.0), (4, 2.5))
        for alpha, beta in ((1e-6, 9e-9), (1e-5, factor * 1e-9))
    ]
    assert sharing_of(lines, ("node",)) == {"node": pytest.approx(0.5)}


def test_sharing_is_a_median_and_stays_between_none_and_all() -> None:
    def link(collective: str, groups: int, beta: float) -> Link:
        return Link(collective, "node", 2, 0.0, beta, groups=groups)

    one = [link(c, 1, 1e-9) for c in ("all_reduce", "all_gather", "reduce_scatter")]
    two = [
        link("all_reduce", 2, 1.5e-9), link("all_gather", 2, 9e-9),
        link("reduce_scatter", 2, 0.1e-9),
    ]  # fmt: skip
    assert sharing_of([*one, *two[:1]], ("node",)) == {"node": pytest.approx(0.5)}
    assert sharing_of([*one, *two], ("node",)) == {"node": pytest.approx(0.5)}
    assert sharing_of([*one, *two[1:2]], ("node",)) == {"node": 1.0}
    assert sharing_of([*one, *two[2:]], ("node",)) == {"node": 0.0}
    assert sharing_of(one, ("node",)) == {}


def test_the_device_reproduces_the_samples() -> None:
    device = device_of([device_samples()] * 2, name="made-up", memory_bytes=1 << 30)
    assert device.op_overhead_s == pytest.approx(OVERHEAD_S)
    assert device.peak_flops == {"float32": pytest.approx(PEAK)}
    assert device.memory_bytes_per_s == pytest.approx(BANDWIDTH)
    taken = device_s(device, OpWork("conv2d", "conv", "float32", 1e7, 0.0))
    assert taken == pytest.approx(OVERHEAD_S + 1e7 / (PEAK * 0.25))


def test_a_probe_lost_in_noise() -> None:
    lost = sample(-1e-6, flops=1e7, moved_bytes=0.0)
    samples = device_samples() | {"matmul": lost}
    with pytest.raises(AutoDDLError, match="the matmul probe drowned in noise; measure again"):
        device_of([samples], name="made-up", memory_bytes=1 << 30)
    device = device_of([device_samples() | {"conv": lost}], name="made-up", memory_bytes=1 << 30)
    assert "conv" not in device.kernels
