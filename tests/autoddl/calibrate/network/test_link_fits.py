"""Fitted links, what concurrent groups share, the raw table and the plot, from made-up times."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import cache

import pytest

from autoddl.calibrate.network import link_plot
from autoddl.calibrate.network.link_cases import CollectiveCase, LinkSettings, OverlapTiming, Timing
from autoddl.calibrate.network.link_fits import COLUMNS, LinkFits, fits_of, profile_of, raw_table
from autoddl.perfmodel import collectives
from autoddl.perfmodel.profile_entries import Device
from autoddl.perfmodel.topology import Crossing

SIZES = (1 << 12, 1 << 16, 1 << 22)
SETTINGS = LinkSettings(2, nnodes=2, sizes=SIZES, mode="both")
DEVICE = Device("d", 1 << 30, {"float32": 1e10}, 1e9, 1e-5)


def beta(case: CollectiveCase) -> float:
    """β in s/byte: every further group over a NIC costs 0.8 more; inside a node nothing."""
    return 1e-8 * (1 + 0.8 * (case.groups - 1)) if case.level == "node" else 1e-9


def rows(settings: LinkSettings) -> list[Timing]:
    made = []
    for case in settings.cases():
        taken = collectives.seconds(
            case.collective,
            case.group_size,
            case.size_bytes,
            alpha_s=1e-4,
            beta_s_per_byte=beta(case),
        )
        made.append(Timing(case, case.size_bytes, 9, taken, 0.5 * taken, taken, 2 * taken))
    return made


@cache
def results() -> LinkFits:
    return fits_of(rows(SETTINGS), SETTINGS.modes)


def test_profile() -> None:
    profile = profile_of(results(), SETTINGS, name="x", device=DEVICE)
    assert (profile.name, profile.mode, profile.levels) == ("x", "graph", ("node", "gpu"))
    assert profile.sharing == pytest.approx({"node": 0.8})
    assert "2 nodes with 2 CPU ranks each" in profile.source
    for case in SETTINGS.cases():
        way = Crossing(case.level, case.group_size, case.inner, case.groups)
        link = profile.link(case.collective, way)
        assert (link.inner, link.group_size) == (case.inner, case.group_size)
        assert link.alpha_s == pytest.approx(1e-4)
        assert link.beta_s_per_byte == pytest.approx(beta(case))


def test_inside_a_node_the_profile_has_groups_that_all_work() -> None:
    settings = LinkSettings(4, sizes=SIZES)
    cases = settings.cases()
    assert {case.groups for case in cases if case.group_size == 2} == {1, 2}
    made = [
        replace(row, seconds=2 * row.seconds) if row.case.groups == 2 else row
        for row in rows(settings)
    ]
    profile = profile_of(fits_of(made, ("graph",)), settings, name="x", device=DEVICE)
    assert {link.groups for link in profile.links} == {1}
    assert len({(link.collective, link.group_size) for link in profile.links}) == len(profile.links)
    assert profile.link("all_gather", Crossing("gpu", 2)).beta_s_per_byte == pytest.approx(2e-9)
    assert profile.sharing == pytest.approx({"gpu": 1.0})


def test_noise_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    made = [row for row in rows(SETTINGS) if row.case.collective == "all_reduce"]
    made[1] = replace(made[1], seconds=-1e-6)
    found = fits_of(made, SETTINGS.modes)
    assert f"{made[1].case.label} of 65536 bytes drowned in noise" in caplog.text
    of_it = made[1].case, made[1].size_bytes
    assert found.fitted_s(*of_it) == pytest.approx(results().fitted_s(*of_it))


def test_raw_table() -> None:
    table = list(csv.DictReader(io.StringIO(raw_table(results()).decode())))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == len(SETTINGS.cases())
    for line, row in zip(table, results().rows, strict=True):
        assert line["mode"] == row.case.mode
        assert (int(line["steps"]), int(line["repetitions"])) == (row.case.steps, 9)
        assert float(line["seconds"]) == pytest.approx(row.seconds)
        assert float(line["fitted_s"]) == pytest.approx(row.seconds)
        assert float(line["min_s"]) < float(line["median_s"]) < float(line["max_s"])


def test_a_case_without_a_fit_has_no_fitted_time() -> None:
    case = LinkSettings(2, sizes=(64,)).cases()[0]
    found = LinkFits((Timing(case, 64, 1, 1.0, 1.0, 1.0, 1.0),), {"graph": ()})
    assert raw_table(found).splitlines()[1].endswith(b",")


def test_plot() -> None:
    pytest.importorskip("matplotlib")
    some = [
        row
        for row in results().rows
        if row.case.collective == "all_reduce" and row.case.mode == "graph"
    ]
    png = link_plot.draw(LinkFits(tuple(some), results().links), "x")
    assert png.startswith(b"\x89PNG")
    noisy = [replace(row, seconds=-1.0) for row in some]
    assert link_plot.draw(LinkFits(tuple(noisy), results().links), "x") != png


def test_what_messages_keep_the_device_for_is_no_overlap() -> None:
    """Chains of messages of which each keeps the device for 0.4 ms, and nothing else does."""
    beside = []
    for case in SETTINGS.overlap_cases():
        held_s = 4e-4 * case.messages
        alone_s = held_s if case.short else held_s + 0.5
        ops_s, few_s = 2 * alone_s, 0.1 * alone_s
        beside.append(
            OverlapTiming(
                case, 9, alone_s, ops_s, ops_s + held_s, few_s, alone_s + few_s * case.short
            )
        )
    found = profile_of(
        replace(results(), overlaps=tuple(beside)), SETTINGS, name="x", device=DEVICE
    )
    for level in found.levels:
        assert found.overhead[level] == pytest.approx(4e-4)
        assert found.overlap[level] == pytest.approx(1.0)
        assert found.interference[level] == pytest.approx(0.0, abs=1e-6)


def test_lines_of_padded_and_of_grouped_gathers() -> None:
    """By hand for the shares 3/1/1/1: 3·(α + ½·n·β), and four chains of 3·α that pass on n together."""
    settings = LinkSettings(4, mode="eager", sizes=SIZES, shares=(3, 1, 1, 1))
    made = rows(replace(settings, shares=()))
    for case in (case for case in settings.cases() if case.shares):
        n, padded = case.size_bytes, case.collective == "all_gather"
        taken = 3 * (2e-4 + n / 2 * 3e-9) if padded else 4 * 3 * 4e-4 + n * 5e-9
        sent = 4 * n / 2 if padded else n  # an even gather of that moves as much
        made = [row for row in made if row.case != replace(case, shares=())]
        made.append(Timing(case, sent, 9, taken, taken, taken, taken))
    found = fits_of(made, ("eager",))
    profile = profile_of(found, settings, name="x", device=DEVICE)
    for name, alpha_s, beta in (("all_gather", 2e-4, 3e-9), ("broadcast", 4e-4, 5e-9)):
        link = profile.link(name, Crossing("gpu", 4))
        assert (link.collective, link.group_size) == (name, 4)
        assert link.alpha_s == pytest.approx(alpha_s)
        assert link.beta_s_per_byte == pytest.approx(beta)
    for row in (row for row in made if row.case.shares):
        assert found.fitted_s(row.case, row.size_bytes) == pytest.approx(row.seconds, rel=1e-3)
