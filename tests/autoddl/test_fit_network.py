"""The command line: outputs, exit codes, one line for every mistake, and one real run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoddl import fit_network
from autoddl.engine.launch import LaunchError, LaunchResult
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Device, Link, Profile
from autoddl.sbp.boxing import COLLECTIVES

PROFILE = Profile(
    name="measured",
    source="tests",
    kind="measured",
    device_type="cpu",
    levels=("gpu",),
    links=(
        Link("all_reduce", "gpu", 2, 123e-6, 0.5e-9, mean_error=0.07),
        Link("all_gather", "gpu", 2, 45e-6, 0.0),
    ),
    device=Device("some CPU", 4 << 30, {"float32": 5e10}, 1e10, 3e-5),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Replace the measuring by a made-up profile; collect its arguments."""
    seen: list[dict[str, Any]] = []

    def measure(nproc_per_node: int, **options: Any) -> Profile:
        seen.append({"nproc_per_node": nproc_per_node, **options})
        options["progress"]("all_reduce over 2 ranks", 0.5)
        return replace(PROFILE, name=options["name"])

    monkeypatch.setattr(fit_network, "measure", measure)
    monkeypatch.chdir(tmp_path)
    return seen


def test_table_and_file(calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_network.main(["--nproc-per-node", "2", "--quick", "--timeout", "60"]) == 0
    assert profiles.load("network.json") == replace(PROFILE, name="network")
    out, err = capsys.readouterr()
    for text in ("all-reduce", "123", "2.00", " 7 ", "∞", "50.0 Gflop/s", "wrote network.json"):
        assert text in out
    assert err == "fit_network: all_reduce over 2 ranks (50 %)\n"
    assert calls[0]["quick"]
    assert calls[0]["timeout_s"] == 60


@pytest.mark.parametrize("option", ["--nproc-per-node", "--nproc_per_node"])
def test_json(
    option: str, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert fit_network.main([option, "2", "--json"]) == 0
    assert profiles.from_json(json.loads(capsys.readouterr().out), "stdout") == PROFILE
    assert list(tmp_path.iterdir()) == []
    assert fit_network.main([option, "2", "--json", "-o", "x.json"]) == 0
    assert profiles.load("x.json").name == "x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --nproc-per-node"),
        (["--nproc-per-node", "two"], "invalid int value: 'two'"),
        (["--nproc-per-node", "2", "--mode", "lazy"], "invalid choice: 'lazy'"),
        (["--nproc-per-node", "2", "--slow"], "unrecognized arguments: --slow"),
        (["--nproc-per-node", "2", "-o", "no/such/folder.json"], "No such file or directory"),
        (["--nproc-per-node", "2", "-o", "."], "Is a directory; give another with -o"),
    ],
)
def test_mistakes_are_found_before_measuring(
    arguments: list[str],
    message: str,
    calls: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fit_network.main(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("fit_network: ")
    assert err.count("\n") == 1
    assert not calls


@pytest.mark.parametrize("count", ["0", "-1"])
def test_no_ranks(count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "network.json"
    assert fit_network.main([f"--nproc-per-node={count}", "-o", str(output)]) == 2
    assert capsys.readouterr().err == (
        f"fit_network: nproc_per_node: got {count}; allowed are 1 rank and more\n"
    )
    assert not output.exists()


def _fail(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(nproc_per_node: int, **options: Any) -> Profile:
        raise error

    monkeypatch.setattr(fit_network, "measure", measure)


def test_a_dead_rank(
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = LaunchResult(
        (-15, -11), 1, False, None, 1.0, ("", ""), Path("logs"), ("last words",), "rank 1 died", 139
    )
    _fail(LaunchError(result), monkeypatch)
    assert fit_network.main(["--nproc-per-node", "2"]) == 139
    assert capsys.readouterr().err.splitlines() == [
        "fit_network: rank 1 died",
        "last words",
        "logs of all ranks: logs",
    ]


def test_a_failure_leaves_the_old_file_alone(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("network.json").write_text("old")
    _fail(AutoDDLError("too noisy"), monkeypatch)
    assert fit_network.main(["--nproc-per-node", "2"]) == 2
    assert Path("network.json").read_text() == "old"


def test_interrupt(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fail(KeyboardInterrupt(), monkeypatch)
    assert fit_network.main(["--nproc-per-node", "2"]) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.oneflow
@pytest.mark.testbed
@pytest.mark.slow
def test_two_real_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autoddl.fit_network", "--nproc-per-node", "2", "--quick"]
    done = subprocess.run(
        [*command, "--timeout", "70", "-o", "pair.json"],
        cwd=tmp_path,
        env=None,
        capture_output=True,
        text=True,
        timeout=85,
    )
    assert done.returncode == 0, done.stderr
    assert "wrote pair.json" in done.stdout
    profile = profiles.load(tmp_path / "pair.json")
    assert {link.group_size for link in profile.links} == {2}
    assert len(profile.links) >= len(COLLECTIVES) - 1  # noise may hide one
    assert sum(link.alpha_s > 0 for link in profile.links) >= 2
    assert sum(link.beta_s_per_byte > 0 for link in profile.links) >= 2
    for link in profile.links:
        short, long = (profile.collective_s(link.collective, "gpu", 2, n) for n in (1e4, 4e6))
        assert 0 < short <= long
    device = profile.device
    assert device.peak_flops["float32"] > 1e8
    assert device.memory_bytes_per_s > 1e8
    assert 0 < device.op_overhead_s < 0.01
    assert all(k.flops_per_s["float32"] > 0 for k in device.kernels.values())
