"""The command line of fit-device: outputs, one line for every mistake, resuming, and a real run."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from autoddl import store
from autoddl.calibrate import campaign
from autoddl.calibrate.device.op_timing import OpSettings, merged, time_ops
from autoddl.cli import fit_device_command
from autoddl.cli.app import main
from autoddl.engine import engines
from autoddl.engine.interface import Engine
from autoddl.errors import AutoDDLError
from autoddl.launch.launcher import LaunchError, LaunchResult
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.kernel_fits import Timed
from autoddl.perfmodel.profile import Link, Profile

ONEFLOW = engines.load("oneflow")
OPS = [
    Timed("matmul", "matmul", "float32", n**1.5, 12.0 * n, 1e-5 + n**1.5 / 2e10)
    for n in (1e4, 1e5, 1e6)
] + [Timed("relu", "elementwise", "float32", n, 8.0 * n, 2e-5 + n * 4e-9) for n in (1e4, 1e5, 1e6)]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[OpSettings]:
    """Replace the measuring by made-up ops; collect its settings."""
    seen: list[OpSettings] = []

    def measure(engine: Engine, setting: OpSettings, **options: Any) -> list[Timed]:
        seen.append(setting)
        options["progress"]("timed rows", 0.5)
        return OPS

    monkeypatch.setattr(fit_device_command, "time_ops", measure)
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
    assert settings == [OpSettings(2, quick=True)]


def test_into_replaces_the_device_only(settings: list[OpSettings]) -> None:
    network = Profile(
        name="network", source="here", kind="measured", device_type="cpu", levels=("gpu",),
        links=(Link("all_reduce", "gpu", 2, 1e-4, 1e-9),),
        device=profiles.load("cpu-loopback").device,
    )  # fmt: skip
    network.save("network.json")
    assert main(["fit-device", "--nproc-per-node", "2", "--into", "network.json"]) == 0
    loaded = profiles.load("network.json")
    assert "relu" in loaded.device.kernels
    assert loaded.source == "here; device: python -m autoddl fit-device --nproc-per-node 2"
    assert replace(loaded, device=network.device, source="here") == network
    assert not Path("device.json").exists()


def test_json_alone_writes_no_file(
    settings: list[OpSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit-device", "--nproc-per-node", "2", "--json", "--ops", "matmul, relu"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["kernels"]["relu"]
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
    assert "output file network.json: No space left on device" in capsys.readouterr().err
    assert Path("network.json").read_text() == before
    assert [p.name for p in Path().iterdir()] == ["network.json"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "Missing option '--nproc-per-node'"),
        ("--nproc-per-node 0", "got 0; allowed are 1 rank and more"),
        ("--nproc-per-node 2 --timeout 0", "0.0 is not in the range x>0"),
        ("--nproc-per-node 2 --ops matmull", "ops: got matmull; allowed are OneFlow's op types"),
        ("--nproc-per-node 2 -o missing/device.json", "missing/device.json: No such file"),
        ("--nproc-per-node 2 --into missing.json", "'missing.json': no such file"),
        ("--nproc-per-node 2 --csv .", "output file .: Is a directory"),
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


def launcher(outcomes: list[int], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the launch: each times the first source that is not done, and exits as told."""
    tasks: list[dict[str, Any]] = []

    def launch(command: list[str], *, nproc_per_node: int, **options: Any) -> LaunchResult:
        folder = Path(command[2])
        tasks.append(json.loads((folder / "task.json").read_text()))
        exit_code = outcomes[len(tasks) - 1]
        name = next(n for n in ("a", "b") if n not in tasks[-1]["done"])
        for rank in range(nproc_per_node):
            record = {
                "op": "x", "op_type": "relu", "family": "elementwise", "dtype": "float32",
                "flops": 1.0, "moved_bytes": 8.0, "seconds": 1.0 + rank, "variant": "",
            }  # fmt: skip
            found = {"source": name, "records": [record], "calls_s": [2.0, 2.0]}
            lines = [json.dumps(found), '{"source": "half']
            (folder / f"rank{rank}.jsonl").write_text("\n".join(lines))
        return LaunchResult(
            returncodes=(exit_code, exit_code), failed_rank=1 if exit_code else None,
            timed_out=False, interrupted_by=None, wall_s=1.0, logs=(), log_dir=None, tail=(),
            message="rank 1 failed", exit_code=exit_code,
        )  # fmt: skip

    monkeypatch.setattr(campaign, "launch", launch)
    monkeypatch.setattr(type(ONEFLOW), "installed", lambda engine: True)
    return tasks


def test_goes_on_after_the_engines_race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tasks = launcher([139, 0], monkeypatch)
    ops = time_ops(ONEFLOW, OpSettings(2), partial=tmp_path / "p")
    assert [task["done"] for task in tasks] == [[], ["a"]]
    assert [op.seconds for op in ops] == [1.5, 1.5]


def test_resumes_from_the_partial_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tasks = launcher([1, 0], monkeypatch)
    partial = tmp_path / "p"
    with pytest.raises(LaunchError):
        time_ops(ONEFLOW, OpSettings(2), partial=partial)
    with partial.open("a") as file:
        file.write('{"source": "trunc')  # a full disk
    assert len(time_ops(ONEFLOW, OpSettings(2), partial=partial)) == 2
    assert tasks[1]["done"] == ["a"]
    with pytest.raises(AutoDDLError, match="other settings: ranks 2 instead of 3"):
        time_ops(ONEFLOW, OpSettings(3), partial=partial)


def test_times_are_means_over_ranks_that_wait_for_the_slowest() -> None:
    record = {
        "op": "x", "op_type": "relu", "family": "elementwise", "dtype": "float32",
        "flops": 1.0, "moved_bytes": 8.0, "seconds": 1.0, "variant": "column",
    }  # fmt: skip
    ranks = [
        {"records": [record], "calls_s": [1.0, 4.0]},
        {"records": [record | {"seconds": 4.0}], "calls_s": [3.0, 2.0]},
    ]
    (op,) = merged(ranks)  # the slowest ranks take 3 + 4 of a mean of 2 + 3 seconds
    assert op == Timed("relu", "elementwise", "float32", 1.0, 8.0, 2.5 * 7 / 5, "column")


@pytest.mark.oneflow
@pytest.mark.ranks
def test_two_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autoddl.fit_device", "--nproc-per-node", "2", "--quick"]
    command += ["--ops", "tanh,matmul", "-o", "device.json", "--csv", "ops.csv"]
    done = subprocess.run(
        [*command, "--timeout", "100"], cwd=tmp_path, capture_output=True, text=True, timeout=110,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kernels = profiles.load(tmp_path / "device.json").device.kernels
    assert kernels.keys() == {"tanh", "matmul", "elementwise"}
    with (tmp_path / "ops.csv").open() as file:
        rows = list(csv.DictReader(file))
    # flops and bytes of tanh over (256, 512) float32, by hand
    assert {"131072.0", "1048576.0"} & {r["moved_bytes"] for r in rows if r["op_type"] == "tanh"}
    assert sum(float(row["seconds"]) for row in rows) > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["device.json", "ops.csv"]
