"""Meshes with shares by hand: what is planned on them, what prices such plans again, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replaced

import autoddl
from autoddl.api import Plan
from autoddl.cli import app
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.explain.reopened import reopened
from autoddl.explain.sensitivity import known_plans, sensitivities, with_devices
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.perfmodel.scaled_profile import scaled
from autoddl.plan import codec
from autoddl.search.budget import Budget
from tests.support.clusters import cluster, of_two_kinds
from tests.support.programs import mlp

SOME = Budget(evaluations=2_000)
ALIKE = cluster(overlap={"node": 1.0, "gpu": 0.0})
UNLIKE = of_two_kinds(ALIKE, 3.0)
WIDE, ODD = mlp(64, (256, 512, 256)), mlp(9, (18, 27))
BOTH = {"cluster": "1*fast + 1*slow", "mesh": "2:3/1", "engine": "script"}


@cache
def planned(
    mesh: str, kinds: str | None, search: str = "exact", engine: str | None = "script"
) -> Plan:
    return autoddl.optimize(
        WIDE, mesh=mesh, cluster=kinds, profile=UNLIKE if kinds else ALIKE, engine=engine,
        budget=SOME, search=search,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "kinds", "text"),
    [
        ("2:3/1", "1*fast + 1*slow", "mesh 2:3/1 on 1*fast + 1*slow"),
        ("2:1/3", "1*slow + 1*fast", "mesh 2:1/3 on 1*slow + 1*fast"),
        ("[node 2:3/1][gpu 2]", "1*fastx2 + 1*slowx2", "mesh 2:3/1x2 on 2*fast + 2*slow"),
        ("2x2:3/1", "2*fastx2", "mesh 2x2:3/1 on 4*fast"),
        ("2:3/1", None, "mesh 2:3/1"),
        ("2", "1*fast + 1*slow", "mesh 2"),
    ],
)
def test_its_own_profile_gives_its_own_figures(
    mesh: str, kinds: str | None, text: str, tmp_path: Path
) -> None:
    planned(mesh, kinds).save(tmp_path / "plan.json")
    plan = autoddl.load(tmp_path / "plan.json")
    assert plan == planned(mesh, kinds) and plan.devices_text == text
    told = plan.recost(UNLIKE if kinds else ALIKE, again=False)
    assert told.now == told.before == plan.estimate


def test_each_device_has_its_share_at_its_own_speed() -> None:
    """Op by op, the longer of what the fast one takes for three units, and the slow one for one."""
    plan = planned("2:3/1", "1*fast + 1*slow", "data parallel")
    units = {"fast": (3, 4), "slow": (1, 4)}
    expected = 0.0
    for op in WIDE.ops:
        seconds = []
        for kind, (own, total) in units.items():
            shapes = []
            for operand, tensor in op.operands:
                state, shape = plan.signatures[op.name][operand], [*WIDE.tensor[tensor].shape]
                if state[0].is_split:
                    shape[state[0].dim] = shape[state[0].dim] * own // total
                shapes.append(tuple(shape))
            operands = {o: WIDE.tensor[t] for o, t in op.operands}
            work = OpWork.local(op, operands, tuple(shapes))
            seconds.append(device_s(UNLIKE.devices[kind], work))
        expected += max(seconds)
    assert plan.estimate.compute_s == pytest.approx(expected, rel=1e-12)
    swapped = planned("2:3/1", "1*slow + 1*fast", "data parallel")
    assert swapped.estimate.compute_s > 1.4 * plan.estimate.compute_s


def test_what_looks_at_plans_prices_them_by_device(tmp_path: Path) -> None:
    plan = planned("2:3/1", "1*fast + 1*slow")
    plan.trace(tmp_path / "trace.json", profile=UNLIKE)
    spans = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ends = [each["ts"] + each["dur"] for each in spans if each["ph"] == "X"]
    assert max(ends) == pytest.approx(plan.estimate.step_s * 1e6, rel=1e-9)
    text = str(plan.explain(profile=UNLIKE))
    assert "each device of mesh 2:3/1 on 1*fast + 1*slow does" in text and "now" not in text
    assert "the step takes" in str(plan.explain("model.fc1", profile=UNLIKE, budget=0))
    plan.report(tmp_path / "plan.html", profile=UNLIKE)
    assert "can&#39;t be priced" not in (tmp_path / "plan.html").read_text()
    twice = plan.recost(scaled(UNLIKE, device=2.0), again=False).now
    assert 0.5 < twice.compute_s / plan.estimate.compute_s < 0.8  # launches stay
    other = planned("2:1/3", "1*slow + 1*fast")
    assert "mesh 2:1/3 on 1*slow + 1*fast" in str(plan.diff(other))
    told = autoddl.what_if(
        WIDE,
        mesh=["2:3/1", "2:1/1"],
        cluster=BOTH["cluster"],
        profile=UNLIKE,
        engine="script",
        budget=SOME,
    )
    steps = [each.step_s for each in told.variants if each.name != "base"]
    even = planned("2", BOTH["cluster"])
    assert steps == [plan.estimate.step_s, even.estimate.step_s]


def test_faster_devices_are_priced_by_device_as_well() -> None:
    plan = planned("2:3/1", "1*fast + 1*slow", "data parallel")
    found = reopened(plan, UNLIKE)
    of_compute, *_ = sensitivities(found, known_plans(found))
    flips = [flip for flip in (of_compute.slower, of_compute.faster) if flip is not None]
    assert flips
    for flip in flips:
        told = plan.recost(with_devices(UNLIKE, flip.factor), again=False)
        assert flip.plan_s == pytest.approx(told.now.step_s, rel=1e-9)


@pytest.mark.parametrize("memory", [None, "4MiB"])
def test_memory_is_counted_by_device_again(memory: str | None) -> None:
    """Of its own profile, and where the user gave all devices as much."""
    slow = replaced(UNLIKE.devices["slow"], memory_bytes=UNLIKE.memory_bytes // 2)
    own = replaced(UNLIKE, devices={**UNLIKE.devices, "slow": slow})
    plan = autoddl.optimize(WIDE, **BOTH, profile=own, memory=memory, budget=SOME)
    told = plan.recost(own, again=False, memory=memory)
    assert told.now == plan.estimate and told.fits
    assert plan.estimate.room == (1.0 if memory else 2.0)


def test_planning_again_keeps_each_kind_at_its_place() -> None:
    told = planned("2:1/3", "1*slow + 1*fast").recost(scaled(UNLIKE, device=2.0), budget=SOME)
    assert told.again is not None and told.again.parts[0].device_kinds == ("slow", "fast")
    assert str(told.again.mesh) == "2:1/3" and told.gain is not None and told.gain >= -1e-9


def test_a_file_that_does_not_tell_kinds_by_device_is_read_but_not_priced() -> None:
    plan = planned("2:3/1", "1*fast + 1*slow")
    old = replace(plan, parts=(replace(plan.parts[0], device_kinds=()),))
    told = r"on mesh 2:3/1 of kinds fast, slow, and its file is of a version .*; plan again with"
    for ask in (
        lambda: old.recost(UNLIKE, again=False),
        lambda: old.explain(profile=UNLIKE),
        lambda: old.trace("none.json", profile=UNLIKE),
    ):
        with pytest.raises(AutoDDLError, match=told):
            ask()
    assert "certain: " in str(old.explain())


@pytest.mark.parametrize(
    "kinds", [["fast"], ["fast", "fast"], ["fast", "slow", "slow"], ["a", "b"]]
)
def test_a_file_of_wrong_kinds_is_no_plan(kinds: list[str], tmp_path: Path) -> None:
    plan = planned("2:3/1", "1*fast + 1*slow")
    wrong = replace(plan, parts=(replace(plan.parts[0], device_kinds=tuple(kinds)),))
    wrong.save(tmp_path / "plan.json")
    with pytest.raises(AutoDDLError, match=r"parts\[0\].device_kinds: .* has 2 devices, of kinds"):
        autoddl.load(tmp_path / "plan.json")


def test_files_without_shares_are_as_they_were() -> None:
    parts = codec.to_json(planned("2", "1*fast + 1*slow"))["parts"]
    assert parts[0]["kinds"] == ["fast", "slow"] and "device_kinds" not in parts[0]


def test_what_helps_where_it_does_not_fit_leaves_the_mesh_out() -> None:
    with pytest.raises(InfeasibleError) as error:
        autoddl.optimize(WIDE, **BOTH, profile=UNLIKE, memory="3MiB", budget=1)
    told = error.value.diagnosis
    assert told is not None
    tried = [*(each.change for each in told.remedies), *told.vain, *told.untried]
    assert {"mesh": None, "cluster": "2*fast + 2*slow"} in [each.options for each in tried]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another number": ({"mesh": "2:3/1/1"}, "shares '3/1/1': got 3 for an axis of 2; give one for each"),
    "negative": ({"mesh": "2:3/-1"}, "shares '3/-1': got -1; allowed are whole numbers from 1 on"),
    "all 0": ({"mesh": "2:0/0"}, "shares '0/0': got 0; allowed are whole numbers from 1 on"),
    "one 0": ({"mesh": "2:3/0"}, "got 0; .*; a device that is to do nothing is left out of the mesh"),
    "over 64": ({"mesh": "2:64/1"}, "shares '64/1': 65 units together; allowed are 64 at most"),
    "no number": ({"mesh": "2:3/x"}, "a share expected at '2:3/ <-- HERE x'"),
    "no such sum": (
        {"program": ODD},
        "got 2:3/1, whose 4 units divide no dim .*; sums of shares that do are 3, 6, 9, 18, 27; give",
    ),
    "halves": ({"duplex": True}, "got 2:3/1 with duplex=True, where .*: duplex=False"),
    "compute stream": (
        {"compute_stream": True, "program": replace(WIDE, device="cuda"), "engine": None,
         "profile": of_two_kinds(cluster(device_type="cuda"), 3.0)},
        "got 2:3/1 with compute_stream=True, where .*: compute_stream='auto'",
    ),
    "local BatchNorm": (
        {"allow_local_batchnorm": True},
        "with allow_local_batchnorm=True, where .*: allow_local_batchnorm=False",
    ),
    "engine": (
        {"engine": "oneflow"},
        "got 2:3/1 with engine='oneflow', where OneFlow cuts evenly; .*: engine='script' or engine=None",
    ),
    "not wanted": ({"shares": False}, "got 2:3/1 with shares=False, where .*: shares='auto'"),
    "HiDup": ({"search": "hidup"}, "got 2:3/1 with search='hidup', where .*: search='exact'"),
    "HAP finds them": ({"search": "hap"}, "with search='hap', which finds shares; give '2'"),
    "HAP on two axes": (
        {"search": "hap", "mesh": "2x2", "cluster": "1*fastx2 + 1*slowx2"},
        "search: got 'hap' on mesh 2x2; it gives shares of one axis; give mesh='4'",
    ),
    "no such kind": ({"profile": ALIKE}, "profile made-up: no kind 'fast'; its kinds are none"),
    "kinds not told": ({"cluster": None}, "devices of kinds fast, slow; say which node is what"),
    "stages": ({"pipeline": 2}, "got 2:3/1 with pipeline=2; .* all devices in one stage"),
    "micro-batches": ({"micro_batches": 2}, "got 2:3/1 with micro_batches=2; .* in one stage"),
    "other devices": (
        {"mesh": "4:3/3/1/1", "cluster": "1*fastx2 + 1*slowx2"},
        "with cluster 1.fastx2 . 1.slowx2, which are .node 2..gpu 2.; give a mesh whose axes multiply",
    ),
    "unlike nodes": (
        {"mesh": "3:2/1/1", "cluster": "1*fastx2 + 1*slowx1"}, "are nodes of unlike size; give a mesh"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, told = WRONG[name]
    given = {"program": WIDE, "profile": UNLIKE, **BOTH, **options}
    with pytest.raises(AutoDDLError, match=told) as error:
        autoddl.optimize(given["program"], **{k: v for k, v in given.items() if k != "program"})
    assert str(error.value).isprintable()
    monkeypatch.chdir(tmp_path)
    given["program"].save("program.json")
    given["profile"].save("profile.json")
    words = ["plan", "program.json", "--profile", "profile.json"]
    for option, value in given.items():
        if option in ("program", "profile") or (value is None and option != "engine"):
            continue
        word = {None: "none", True: "yes", False: "no"}.get(value, str(value))
        words += [
            f"--{option.replace('_', '-')}",
            *([word] if option != "allow_local_batchnorm" else []),
        ]
    assert app.main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].isprintable(), said
    assert not Path("plan.json").exists()


@pytest.mark.parametrize("engine", ["script", None])
def test_plans_over_shares_are_not_applied(engine: str | None) -> None:
    plan = planned("2:3/1", "1*fast + 1*slow", engine=engine)
    with pytest.raises(
        AutoDDLError, match=f"made for engine {engine!r}".replace("'", ".?")
    ) as error:
        plan.apply(None)
    assert "engine" in str(error.value) and str(error.value).isprintable()
