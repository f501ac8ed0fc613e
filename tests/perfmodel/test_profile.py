"""Profiles: bad files say in one line what to do, files round-trip, look-ups take the nearest."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from autoddl.cli import app
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, Link
from autoddl.perfmodel.topology import Crossing
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, COLLECTIVES, REDUCE_SCATTER

MATMUL = Kernel(2e-5, 5e9, {"float32": 8e9, "float16": 1e10}, 0.1)
DEVICE = Device("cpu", 1 << 30, {"float32": 1e10}, 1e10, 1e-5, {"matmul": MATMUL})
PROFILE = Profile(
    name="made-up",
    source="tests",
    kind="measured",
    device_type="cpu",
    levels=("node", "gpu"),
    links=(
        Link(ALL_REDUCE, "gpu", 2, 1e-4, 1e-9, mean_error=0.05),
        Link(ALL_REDUCE, "gpu", 8, 3e-4, 2e-9),
        Link(ALL_REDUCE, "node", 4, 1e-3, 1e-8),
        Link(ALL_GATHER, "node", 2, 2e-3, 2e-8),
        Link(REDUCE_SCATTER, "node", 4, 5e-3, 2e-8),
        Link(REDUCE_SCATTER, "node", 4, 4e-3, 3e-8, groups=4, r2=0.9),
        Link(
            REDUCE_SCATTER, "node", 4, 6e-3, 1e-8, inner=2,
            alpha_interval_s=(5e-3, 7e-3), beta_interval_s_per_byte=(0.0, 2e-8),
        ),
        Link(SEND_RECEIVE, "gpu", 2, 1e-5, 1e-10),
    ),
    devices={ALIKE: DEVICE},
    licence="CC0-1.0",
    sharing={"node": 0.5},
    overlap={"node": 0.75},
    overhead={"node": 2e-4},
    mode="graph",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "network.json"
    PROFILE.save(path)
    return path


def test_round_trip(file: Path) -> None:
    assert profiles.load(file) == PROFILE
    assert profiles.load(str(file)) == PROFILE


def test_the_format_of_files_is_that_of_the_golden_one(file: Path) -> None:
    golden = Path(__file__).parent / "golden_profile.json"
    assert file.read_bytes() == golden.read_bytes()
    assert profiles.load(golden) == PROFILE


def test_files_from_before_algorithms_are_read(file: Path) -> None:
    """They wrote every field of a link."""
    data = json.loads(file.read_text())
    unset = ("mean_error", "r2", "alpha_interval_s", "beta_interval_s_per_byte")
    for link in data["links"]:
        assert "algorithm" not in link
        link |= {"inner": 1, "groups": 1, "kinds": []} | dict.fromkeys(unset) | dict(link)
    file.write_text(json.dumps(data))
    assert profiles.from_json(file.read_bytes(), "old") == PROFILE


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_are_refused_in_one_line(file: Path, seed: int) -> None:
    rng, whole = random.Random(seed), file.read_bytes()
    for _ in range(50):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            first, last = sorted(rng.choices(range(len(data) + 1), k=2))
            last = min(last, first + rng.choice((0, 1, 8, 200)))
            other = rng.choice(
                (
                    b"",
                    rng.randbytes(3),
                    data[last : last + 9],
                    b"null",
                    b"-1",
                    b"[[",
                    b'"',
                    b"1e999",
                )
            )
            data[first:last] = other
        file.write_bytes(data)
        try:
            profiles.load(file)  # what still is a profile is one
        except AutoDDLError as error:
            text = str(error)
            assert "\n" not in text and str(file) in text and len(text) < 700, text


@pytest.mark.parametrize("opening", [b"[", b'{"links":[', b'{"device":{"kernels":{"a":'])
def test_deep_nesting_is_refused(file: Path, opening: bytes) -> None:
    file.write_bytes(opening * 100_000)
    with pytest.raises(AutoDDLError, match="not JSON"):
        profiles.load(file)


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


AGAIN = "measure again with `python -m autoddl fit-network`"
DAMAGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "missing": (Path.unlink, "no such file and no bundled profile of that name", "-o "),
    "truncated": (_cut, "not JSON", AGAIN),
    "binary": (lambda p: p.write_bytes(b"\xff\xfe\x00") and None, "not JSON", AGAIN),
    "not a profile": (lambda p: p.write_text("[1, 2]") and None, "not a profile", "fit-network"),
    "other version": (_edit(lambda d: d.update(version=99)), "version 99, .* reads 3", AGAIN),
    "field missing": (
        _edit(lambda d: d.pop("devices")),
        r"\$: object missing required field `devices`",
        AGAIN,
    ),
    "field unknown": (
        _edit(lambda d: d.update(colour=1)),
        r"\$: object contains unknown field `colour`",
        AGAIN,
    ),
    "α negative": (
        _edit(lambda d: d["links"][0].update(alpha_s=-1e-6)),
        r"\$\.links\[0\]: alpha_s of all_reduce is -1e-06; allowed: finite numbers from 0 to",
        AGAIN,
    ),
    "β not a number": (
        _edit(lambda d: d["links"][1].update(beta_s_per_byte=float("nan"))),
        "not JSON .*invalid character",
        AGAIN,
    ),
    "α a text": (
        _edit(lambda d: d["links"][1].update(alpha_s="1")),
        r"\$\.links\[1\]\.alpha_s: expected `float`, got `str`: '1'",
        AGAIN,
    ),
    "a long text": (
        _edit(lambda d: d["links"][1].update(alpha_s="1" * 999)),
        r"\$\.links\[1\]\.alpha_s: expected `float`, got `str`: '1{198}…;",
        AGAIN,
    ),
    "spans all": (
        _edit(lambda d: d["links"][5].update(inner=4)),
        "inner of reduce_scatter is 4 of 4 members; allowed: a true divisor",
        "",
    ),
    "no groups": (
        _edit(lambda d: d["links"][4].update(groups=0)),
        "groups of reduce_scatter is 0; allowed: 1 to 1048576",
        "",
    ),
    "half an interval": (
        _edit(lambda d: d["links"][6].update(alpha_interval_s=[1.0])),
        r"\$\.links\[6\]\.alpha_interval_s: expected `array` of length 2, got 1: \[1.0\]",
        AGAIN,
    ),
    "too much sharing": (
        _edit(lambda d: d["sharing"].update(node=1.5)),
        r"sharing\[node\] is 1.5; allowed: finite numbers from 0 to 1;",
        "",
    ),
    "ops are quicker beside a boxing": (
        _edit(lambda d: d["interference"].update(node=-0.5)),
        r"interference\[node\] is -0.5; allowed: finite numbers from 0 to",
        "",
    ),
    "interference of no level": (
        _edit(lambda d: d["interference"].update(rack=0.5)),
        r"interference of 'rack'; levels are node",
        "",
    ),
    "more than all overlaps": (
        _edit(lambda d: d["overlap"].update(node=-0.5)),
        r"overlap\[node\] is -0.5; allowed: finite numbers from 0 to",
        "",
    ),
    "sharing of no level": (
        _edit(lambda d: d["sharing"].update(rack=1)),
        "sharing of 'rack'; levels are node, gpu",
        "",
    ),
    "kernel without float32": (
        _edit(lambda d: d["devices"][""]["kernels"]["matmul"]["flops_per_s"].pop("float32")),
        r"\$\.devices\[''\]\.kernels\['matmul'\]: flops_per_s of float16; give at least float32",
        "",
    ),
    "kernels a list": (
        _edit(lambda d: d["devices"][""].update(kernels=[])),
        r"\$\.devices\[''\]\.kernels: expected `object`, got `array`: \[\]",
        "",
    ),
    "a rate a text": (
        _edit(
            lambda d: d["devices"][""]["kernels"]["matmul"]["flops_per_s"].update(float16="fast")
        ),
        r"kernels\['matmul'\]\.flops_per_s\['float16'\]: expected `float`, got `str`: 'fast'",
        AGAIN,
    ),
    "old version": (_edit(lambda d: d.update(version=1)), "version 1, .* reads 3", AGAIN),
    "wrong level": (
        _edit(lambda d: d["links"][0].update(level="rack")),
        "link in level 'rack'; levels are node, gpu",
        "",
    ),
    "wrong kind": (_edit(lambda d: d.update(kind="guess")), "allowed: measured, data sheet", ""),
    "no memory": (
        _edit(lambda d: d["devices"][""].update(memory_bytes=0)),
        "memory_bytes is 0",
        AGAIN,
    ),
    "infinite rate": (
        lambda p: p.write_text(p.read_text().replace("10000000000.0", "1e999", 1)) and None,
        "not JSON .*out of range",
        AGAIN,
    ),
}


# What an edited file can hold and no maker writes: `sign` reads it as `load` does.
_SECOND = {
    "collective": "all_reduce",
    "level": "gpu",
    "group_size": 2,
    "alpha_s": 1,
    "beta_s_per_byte": 1,
}
NONSENSE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a level twice": (lambda d: d.update(levels=["node", "gpu", "gpu"]), "level 'gpu'; allowed: "),
    "a level of escapes": (
        lambda d: d.update(levels=["node", "gpu", "\x1b[31m"]),
        r"level '\\x1b\[31m'; allowed: names as node and gpu, each once",
    ),
    "a level in markup": (lambda d: d.update(levels=["node", "gpu", "[red]"]), r"level '\[red\]'"),
    "many levels": (lambda d: d.update(levels=[f"l{i}" for i in range(10)]), "levels: 10 of them"),
    "a name of a million": (
        lambda d: d.update(name="x" * 10**6), "name 'x+….* of 1000000 characters; allowed are 300"
    ),
    "a name of escapes": (lambda d: d.update(name="a\x1b]0;b\x07"), r"name 'a\\x1b\]0;b\\x07'"),
    "a source of two lines": (lambda d: d.update(source="a\nb"), r"source 'a\\nb'; allowed is text"),
    "a licence of escapes": (lambda d: d.update(licence="\x9b1m"), "licence .*; allowed is text"),
    "a device of escapes": (
        lambda d: d["devices"][""].update(name="\x1b[2J"), "name of a device .*; allowed is text"
    ),
    "a kernel of escapes": (
        lambda d: d["devices"][""]["kernels"].update({"\x1b": d["devices"][""]["kernels"]["matmul"]}),
        "name of a kernel .*; allowed is text",
    ),
    "a kind of escapes": (lambda d: d.update(devices={"\x1b": d["devices"][""]}), "kind .*v100 or t4"),
    "another device type": (lambda d: d.update(device_type="tpu"), "device_type 'tpu'; allowed: cpu"),
    "another mode": (lambda d: d.update(mode="lazy"), "mode 'lazy'; allowed: , graph, eager"),
    "two links of a key": (
        lambda d: d["links"].append(_SECOND), "two links of all_reduce in level gpu for groups of 2 "
    ),
    "a tree of gathers": (
        lambda d: d["links"][3].update(algorithm="tree"),
        "algorithm of all_gather is 'tree'; allowed: ring, nvls",
    ),
    "another algorithm": (
        lambda d: d["links"][0].update(algorithm="star"),
        "algorithm of all_reduce is 'star'; allowed: ring, tree, nvls",
    ),
    "20,000 links": (
        lambda d: d["links"].extend({**_SECOND, "group_size": n} for n in range(9, 20_001)),
        "links: 2.... of them; allowed: 10000",
    ),
    "a group of all the world": (
        lambda d: d["links"][1].update(group_size=1 << 40), "group_size .*; allowed: 2 to 1048576"
    ),
    "α of ages": (lambda d: d["links"][1].update(alpha_s=1e308), r"alpha_s .* is 1e\+308; allowed: "),
    "a turned interval": (
        lambda d: d["links"][1].update(alpha_interval_s=[2e-3, 1e-3]), "allowed: finite .* from 0.002"
    ),
    "an error below 0": (lambda d: d["links"][0].update(mean_error=-1), "mean_error is -1"),
    "more than all variance": (lambda d: d["links"][0].update(r2=1.5), "r2 is 1.5"),
    "a rate of no machine": (
        lambda d: d["devices"][""]["peak_flops"].update(float32=1e300), r"peak_flops\[float32\] is 1e"
    ),
    "memory of no machine": (lambda d: d["devices"][""].update(memory_bytes=1 << 62), "memory_b.* is 4"),
}  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_neither_loaded_nor_signed(
    file: Path, nonsense: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, what = NONSENSE[nonsense]
    _edit(change)(file)
    before = file.read_bytes()
    with pytest.raises(AutoDDLError, match=what):
        profiles.load(file)
    assert app.main(["sign", str(file)]) == 2
    said = capsys.readouterr().err
    assert re.search(what, said) and said.count("\n") == 1 and said[:-1].isprintable()
    assert file.read_bytes() == before


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
    with pytest.raises(AutoDDLError, match=r"no default for device 'cuda'; name one of .*h100"):
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
    link = PROFILE.link(ALL_REDUCE, Crossing(level, group_size))
    assert (link.level, link.group_size) == found


def test_a_level_without_measurements_uses_the_outermost_with_some() -> None:
    assert PROFILE.link(ALL_GATHER, Crossing("gpu", 2)).level == "node"


def test_a_collective_without_measurements() -> None:
    with pytest.raises(AutoDDLError, match=r"no measurement of all_to_all; measure with"):
        PROFILE.link("all_to_all", Crossing("gpu", 2))


def test_seconds_of_a_collective() -> None:
    # Nearest to 4 ranks is the link of 2, used with the formula for 4: 6 α + 1.5 n β.
    assert PROFILE.collective_s(ALL_REDUCE, Crossing("gpu", 4), 1e6) == pytest.approx(6e-4 + 1.5e-3)
    assert replace(PROFILE, links=()).collective_s(ALL_REDUCE, Crossing("gpu", 1), 1e6) == 0


LINES = (
    Link(ALL_REDUCE, "node", 32, 2e-6, 5e-11, inner=8, algorithm="tree"),
    Link(ALL_REDUCE, "node", 32, 3e-5, 5e-12, inner=8, algorithm="tree"),
    Link(ALL_REDUCE, "node", 32, 5e-6, 2.5e-12, inner=8),
    Link(ALL_REDUCE, "gpu", 8, 1e-6, 1e-11),
    Link(ALL_REDUCE, "gpu", 8, 5e-5, 2e-12, algorithm="nvls"),
)


def _least(nodes: int, n: float) -> float:
    """Return what NCCL's choice is for: the fastest of two protocols of a tree and a ring."""
    sent, steps, ring = 2 * (8 * nodes - 1) / (8 * nodes) * n, 2 * math.log2(nodes), 16 * nodes - 2
    return min(
        steps * 2e-6 + sent * 5e-11, steps * 3e-5 + sent * 5e-12, ring * 5e-6 + sent * 2.5e-12
    )


@pytest.mark.parametrize("nodes", [4, 2, 16, 64])
def test_the_fastest_line_counts_also_of_derived_groups(nodes: int) -> None:
    profile = replace(PROFILE, links=LINES, sharing={}, overhead={})
    way, sizes = Crossing("node", 8 * nodes, inner=8), [10.0**i for i in range(3, 11)]
    taken = [profile.collective_s(ALL_REDUCE, way, n) for n in sizes]
    assert taken == pytest.approx([_least(nodes, n) for n in sizes], rel=1e-12)
    assert taken == sorted(taken)
    points = itertools.pairwise(zip(sizes, taken, strict=True))
    slopes = [(b - a) / (m - n) for (n, a), (m, b) in points]
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(slopes))  # concave
    found = {profile.link(ALL_REDUCE, way, n).beta_s_per_byte for n in sizes}
    assert found == {5e-11, 5e-12, 2.5e-12}
    inside = [profile.link(ALL_REDUCE, Crossing("gpu", 4), n).algorithm for n in (1e3, 1e8)]
    assert inside == ["ring", "nvls"]


def test_a_single_line_has_the_very_seconds_of_table_ii() -> None:
    link, rng = PROFILE.links[0], random.Random(0)
    for _ in range(100):
        n, p = rng.uniform(1, 1e10), rng.choice((2, 3))
        expected = 2.0 * (p - 1) * link.alpha_s + 2 * (p - 1) / p * n * link.beta_s_per_byte
        assert PROFILE.collective_s(ALL_REDUCE, Crossing("gpu", p), n) == expected


@pytest.mark.parametrize(
    ("group_size", "inner", "groups", "alpha_s"),
    [
        (4, 1, 1, 5e-3),
        (4, 1, 2, 5e-3),  # 2/1 and 4/2 are equally near: the smaller
        (4, 1, 3, 4e-3),
        (8, 1, 8, 4e-3),
        (8, 2, 4, 6e-3),  # the members inside each node count most
        (16, 4, 1, 6e-3),
    ],
)
def test_nearest_kind_of_group(group_size: int, inner: int, groups: int, alpha_s: float) -> None:
    link = PROFILE.link(REDUCE_SCATTER, Crossing("node", group_size, inner=inner, groups=groups))
    assert link.alpha_s == alpha_s


def test_groups_span_levels_as_others_do_with_as_many_members_in_each_unit() -> None:
    assert PROFILE.spans(REDUCE_SCATTER, Crossing("node", 4, inner=2))
    assert PROFILE.spans(REDUCE_SCATTER, Crossing("node", 8, inner=2))
    assert not PROFILE.spans(REDUCE_SCATTER, Crossing("node", 16, inner=8))
    assert not PROFILE.spans(ALL_REDUCE, Crossing("node", 4, inner=2))


@pytest.mark.parametrize(
    ("groups", "seconds"),
    [
        (1, 3 * 5e-3 + 0.75e6 * 2e-8),  # measured alone
        (2, 3 * 5e-3 + 0.75e6 * 2e-8 * 1.5),  # that one, slower by the sharing of 0.5
        (4, 3 * 4e-3 + 0.75e6 * 3e-8),  # measured with four
        (7, 3 * 4e-3 + 0.75e6 * 3e-8 * (1 + 0.5 * 6) / (1 + 0.5 * 3)),
    ],
)
def test_concurrent_groups_share_a_link(groups: int, seconds: float) -> None:
    taken = PROFILE.collective_s(REDUCE_SCATTER, Crossing("node", 4, groups=groups), 1e6)
    assert taken == pytest.approx(seconds)


def test_links_are_shared_between_nodes_and_not_within_by_default() -> None:
    plain = replace(PROFILE, sharing={})
    one, three = (
        plain.collective_s(ALL_GATHER, Crossing("node", 2, groups=g), 1e6) for g in (1, 3)
    )
    assert one == pytest.approx(2e-3 + 0.5e6 * 2e-8)
    assert three == pytest.approx(2e-3 + 3 * 0.5e6 * 2e-8)
    inside = [plain.collective_s(ALL_REDUCE, Crossing("gpu", 2, groups=g), 1e6) for g in (1, 3)]
    assert inside[0] == inside[1]


@pytest.mark.parametrize("name", profiles.bundled())
def test_bundled_profiles_are_sane(name: str) -> None:
    profile = profiles.load(name)
    assert profile.name == name
    for collective in COLLECTIVES:
        for level in profile.levels:
            link = profile.link(collective, Crossing(level, 2))
            assert 0 < link.beta_s_per_byte < 1e-6  # faster than 1 MB/s
            assert 0 <= link.alpha_s < 0.1
            assert link.mean_error is None or link.mean_error < 0.25
            small, large = (
                profile.collective_s(collective, Crossing(level, 4), n) for n in (1e4, 1e7)
            )
            assert 0 < small < large
    assert profile.device.peak_flops["float32"] > 1e8
    assert all(k.flops_per_s["float32"] > 1e7 for k in profile.device.kernels.values())


def test_the_default_for_cpus_was_measured_on_four_ranks() -> None:
    profile = profiles.load(None)
    assert (profile.name, profile.kind, profile.levels) == ("cpu-loopback", "measured", ("gpu",))
    assert profile.source.startswith("measured with python -m autoddl.fit_network")
    assert "on 4 CPU ranks" in profile.source
    sizes = {(link.collective, link.group_size) for link in profile.links}
    assert sizes == {(collective, p) for collective in COLLECTIVES for p in (2, 4)}


@pytest.mark.parametrize(
    ("device_type", "level", "expected"),
    [("cpu", "node", 0.75), ("cpu", "gpu", 0.0), ("cuda", "node", 0.75), ("cuda", "gpu", 1.0)],
)
def test_what_overlaps(device_type: str, level: str, expected: float) -> None:
    assert replace(PROFILE, device_type=device_type).overlapped(level) == expected
    assert replace(PROFILE, overlap={}).overlapped("node") == 1.0


def test_what_hides_costs_ops_something() -> None:
    assert PROFILE.slowed("node") == 0.0
    assert replace(PROFILE, interference={"node": 0.5}).slowed("node") == 0.5
    assert PROFILE.assumed_overlap == ("gpu",)


def test_messages_keep_the_device_however_long_they_are() -> None:
    known = replace(PROFILE, overhead={"node": 1e-3})  # and 0.75 of the rest overlaps
    assert dict(known.parts("node", 10e-3, 2)) == pytest.approx({"device": 4e-3, "node": 6e-3})
    assert dict(known.parts("node", 10e-3)) == pytest.approx({"device": 2.5e-3, "node": 7.5e-3})
    assert known.parts("node", 1.5e-3, 2) == (("device", 1.5e-3),)  # and no longer than it takes
    assert known.parts(None, 2e-3) == (("device", 2e-3),)
    assert known.parts("node", math.inf, 1) == (("node", math.inf),)
    four = Crossing("node", 4)
    assert known.collective_s(ALL_REDUCE, four, 64) == pytest.approx(6e-3 + 96e-8)  # α = 1 ms
    slower = replace(PROFILE, overhead={"node": 2e-3})
    assert slower.collective_s(ALL_REDUCE, four, 64) == 12e-3  # six messages
    with pytest.raises(AutoDDLError, match=r"overhead\[node\] is -1.0; allowed: finite numbers"):
        replace(PROFILE, overhead={"node": -1.0})
