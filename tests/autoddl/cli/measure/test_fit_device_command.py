"""The command line of fit-device: outputs, one line for every mistake, resuming, and a real run."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from autoddl import store
from autoddl.calibrate import probe_launches
from autoddl.calibrate.campaign import OnProgress
from autoddl.calibrate.device import op_timing
from autoddl.calibrate.device.op_timing import OpCampaign, OpSettings, OpSource, OpTask, job_for
from autoddl.cli.app import main
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.kernel_fits import Timed
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link
from tests.support.clusters import of_two_kinds
from tests.support.help_examples import example
from tests.support.on_ranks import LIMIT_S

ONEFLOW = engines.load("oneflow")
OPS = [
    Timed("matmul", "matmul", "float32", n**1.5, 12.0 * n, 1e-5 + n**1.5 / 2e10)
    for n in (1e4, 1e5, 1e6)
] + [Timed("relu", "elementwise", "float32", n, 8.0 * n, 2e-5 + n * 4e-9) for n in (1e4, 1e5, 1e6)]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[OpSettings]:
    """Replace the measuring by made-up ops; collect its settings."""
    seen: list[OpSettings] = []

    def measure(self: OpCampaign, job: LaunchJob, progress: OnProgress) -> None:
        seen.append(self.settings)
        progress("timed rows", 0.5)
        self.found[self.parts[0]] = OPS

    monkeypatch.setattr(OpCampaign, "run", measure)
    monkeypatch.setattr(type(ONEFLOW), "installed", lambda engine: True)
    monkeypatch.chdir(tmp_path)
    return seen


def test_table_profile_and_csv(
    settings: list[OpSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit-device", "--nproc-per-node", "2", "--quick", "--csv", "ops.csv"]) == 0
    device = profiles.load("device.json").device
    assert device.kernels["matmul"].flops_per_s["float32"] == pytest.approx(2e10, rel=0.01)
    assert device.kernels["relu"].bytes_per_s == pytest.approx(2e9, rel=0.01)
    with Path("ops.csv").open() as file:
        assert [float(row["seconds"]) for row in csv.DictReader(file)] == [o.seconds for o in OPS]
    out, err = capsys.readouterr()
    for text in ("matmul", "family elementwise", "2.00", "wrote device.json", "wrote ops.csv"):
        assert text in out
    assert err == "autoddl fit-device: timed rows (50 %)\n"
    taken = [sum(op.seconds for op in OPS if op.op_type == of) for of in ("matmul", "relu")]
    assert re.search(rf"matmul +│ +{100 * taken[0] / sum(taken):.1f} │", out)
    assert settings == [OpSettings(2, quick=True)]


def test_into_replaces_the_device_only(settings: list[OpSettings]) -> None:
    network = Profile(
        name="network", source="here", kind="measured", device_type="cpu", levels=("gpu",),
        links=(Link("all_reduce", "gpu", 2, 1e-4, 1e-9),),
        devices=profiles.load("cpu-loopback").devices,
    )  # fmt: skip
    network.save("network.json")
    assert main(["fit-device", "--nproc-per-node", "2", "--into", "network.json"]) == 0
    loaded = profiles.load("network.json")
    assert "relu" in loaded.device.kernels
    assert loaded.source == "here; device: python -m autoddl fit-device --nproc-per-node 2"
    assert replace(loaded, devices=network.devices, source="here") == network
    assert not Path("device.json").exists()


def test_the_example_of_its_help(settings: list[OpSettings]) -> None:
    profiles.load("cpu-loopback").save("network.json")
    assert main(example("fit-device")) == 0
    assert settings == [OpSettings(4, quick=True)]
    assert profiles.load("network.json").device.kernels.keys() >= {"matmul", "relu"}


def test_a_profile_of_several_kinds_is_left_alone(
    settings: list[OpSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    of_two_kinds(profiles.load("cpu-loopback")).save("network.json")
    before = Path("network.json").read_bytes()
    assert main(["fit-device", "--nproc-per-node", "2", "--into", "network.json"]) == 2
    assert "a profile of kinds fast, slow; say with --kind" in capsys.readouterr().err
    assert Path("network.json").read_bytes() == before and not settings


def test_a_device_of_a_kind(settings: list[OpSettings]) -> None:
    """It takes the place of its kind's; the first one that of devices that were all alike."""
    links = (Link("all_reduce", "gpu", 2, 1e-4, 1e-9),)
    alike = replace(profiles.load("cpu-loopback"), links=links, source="here")
    alike.save("network.json")
    line = ["fit-device", "--nproc-per-node", "2", "--into", "network.json", "--kind"]
    for kind in ("fast", "slow", "fast"):
        assert main([*line, kind]) == 0
    loaded = profiles.load("network.json")
    assert sorted(loaded.kinds) == ["fast", "slow"] and loaded.links == links
    assert loaded.source.startswith("here; fast: python -m autoddl fit-device")
    assert [of.kind for of in settings] == ["fast", "slow", "fast"]


def test_json_alone_writes_no_file(
    settings: list[OpSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit-device", "--nproc-per-node", "2", "--json", "--ops", "matmul, relu"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][""]["kernels"]["relu"]
    assert settings == [OpSettings(2, ops=("matmul", "relu"))]
    assert not list(Path().iterdir())


def test_a_full_disk_leaves_the_old_profile(
    settings: list[OpSettings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profiles.load("cpu-loopback").save("network.json")
    before = Path("network.json").read_text()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    assert main(["fit-device", "--nproc-per-node", "2", "--into", "network.json"]) == 2
    assert "output file network.json: No space left on device" in (err := capsys.readouterr().err)
    assert "nothing is measured twice (network.json.device.partial)" in err
    assert Path("network.json").read_text() == before
    assert sorted(os.listdir()) == ["network.json", "network.json.device.partial"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "Missing option '--nproc-per-node'"),
        ("--nproc-per-node 0", "0 is not in the range 1<=x<=1024"),
        ("--nproc-per-node 2 --timeout 0", "0.0 is not in the range x>0"),
        ("--nproc-per-node 2 --ops matmull", "ops: got 'matmull'; allowed are OneFlow's op types"),
        ("--nproc-per-node 2 -o missing/device.json", "missing/device.json: No such file"),
        ("--nproc-per-node 2 --into missing.json", "'missing.json': no such file"),
        ("--nproc-per-node 2 --csv .", "output file .: Is a directory"),
        ("--nproc-per-node 2 --kind 4x", "'4x' is no name of a kind"),
        ("--nproc-per-node 2 --kind a+b", "'a+b' is no name of a kind"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, complaint: str, settings: list[OpSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit-device", *arguments.split()]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1
    assert not settings


FEW = [OpSource("a", (1,), "sgd", quick=True), OpSource("b", (2,), "sgd", quick=True)]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the launch: each times the first of its sources, and exits as told; the tasks are added."""
    told: list[Any] = []

    def run(job: LaunchJob, on_turn: Any) -> LaunchResult:
        folder = Path(job.command[-1])
        task = msgspec.json.decode((folder / "task.json").read_bytes(), type=OpTask)
        exit_code = told.pop(0)
        told.append([source.name for source in task.sources])
        done = {"source": task.sources[0].name, "ops": [OPS[3]]}
        lines = msgspec.json.encode(done) + b'\n{"source": "half'
        (folder / "results.jsonl").write_bytes(lines)
        return LaunchResult(
            returncodes=(exit_code, exit_code), failed_rank=1 if exit_code else None,
            timed_out=False, interrupted_by=None, wall_s=1.0, logs=(), log_dir=None, tail=(),
            message="rank 1 failed", exit_code=exit_code,
        )  # fmt: skip

    monkeypatch.setattr(probe_launches, "run", run)
    monkeypatch.setattr(op_timing, "SOURCES", FEW)
    monkeypatch.setattr(op_timing, "_BY_NAME", {source.name: source for source in FEW})
    monkeypatch.setattr(type(ONEFLOW), "installed", lambda engine: True)
    return told


def timed(settings: OpSettings, partial: Path) -> list[Timed]:
    ops = OpCampaign(settings, partial)
    ops.run(job_for(ONEFLOW, settings))
    return ops.ops


def test_goes_on_after_the_engines_race(launches: list[Any], tmp_path: Path) -> None:
    launches += [139, 0]
    assert timed(OpSettings(2), tmp_path / "p") == [OPS[3]] * 2
    assert launches == [["a 1", "b 2"], ["b 2"]]


def test_resumes_from_the_partial_file(launches: list[Any], tmp_path: Path) -> None:
    partial = tmp_path / "p"
    launches += [1]
    with pytest.raises(LaunchError):
        timed(OpSettings(2), partial)
    with partial.open("a") as file:
        file.write('{"source": "trunc')  # a full disk
    launches[:] = [0]
    assert len(timed(OpSettings(2), partial)) == 2
    assert launches == [["b 2"]]
    with pytest.raises(AutoDDLError, match="other settings: ranks 2 instead of 3"):
        timed(OpSettings(3), partial)


def test_sources() -> None:
    names = [source.name for source in op_timing.SOURCES]
    assert len(set(names)) == len(names) == 14
    assert [part.name for part in OpCampaign(OpSettings(2, quick=True)).parts] == [
        "dense 4x64x128x4x512", "dense 8x128x256x4x1024", "mixed 4x64x128x4x512", "images 4x8x16",
        "images 8x16x32", "images 16x64x8", "rows 256x512",
    ]  # fmt: skip


@pytest.mark.oneflow
@pytest.mark.ranks
def test_two_ranks(tmp_path: Path) -> None:
    """Of the sources only one has these ops, so the others are not compiled."""
    command = [sys.executable, "-m", "autoddl.fit_device", "--nproc-per-node", "2", "--quick"]
    command += ["--ops", "tanh,exp", "-o", "device.json", "--csv", "ops.csv"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kernels = profiles.load(tmp_path / "device.json").device.kernels
    assert kernels.keys() == {"tanh", "exp", "elementwise"}
    with (tmp_path / "ops.csv").open() as file:
        rows = list(csv.DictReader(file))
    # flops and bytes of tanh over (256, 512) float32, by hand
    assert {"131072.0", "1048576.0"} & {r["moved_bytes"] for r in rows if r["op_type"] == "tanh"}
    assert sum(float(row["seconds"]) for row in rows) > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["device.json", "ops.csv"]
