"""The command line: outputs, exit codes, one line for every mistake, and real runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from autoddl import store
from autoddl.calibrate.campaign import OnProgress
from autoddl.calibrate.network import link_plot
from autoddl.calibrate.network.link_campaign import LinkCampaign
from autoddl.calibrate.network.link_cases import Timing
from autoddl.calibrate.network.link_fits import COLUMNS
from autoddl.cli.app import main
from autoddl.engine import engines
from autoddl.errors import AutoDDLError
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult
from autoddl.perfmodel import collectives
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.topology import Crossing
from tests.support.help_examples import example
from tests.support.on_ranks import LIMIT_S

TWO = ["--nproc-per-node", "2", "--collectives", "all-reduce,send-receive", "-b", "16K", "-e", "1M"]
DRAW = link_plot.draw
DEVICE = {
    name: {"chain_s": [2e-3], "twin_s": [1e-3], "steps": 1, "flops": 1e6, "moved_bytes": 1e6}
    for name in ("overhead", "bandwidth", "matmul", "conv")
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Replace the ranks by made-up times; collect the arguments. `stop` ends after that many cases."""
    seen: list[dict[str, Any]] = []

    def run(
        self: LinkCampaign, job: LaunchJob, progress: OnProgress = lambda text, done: None
    ) -> None:
        stop = seen[0].pop("stop", None) if seen and "stop" in seen[0] else None
        seen.append({"settings": self.settings, "rows": len(self.timings), "job": job})
        if job.node_rank > 0:
            return
        for count, case in enumerate(c for c in self.settings.cases() if c not in self.found):
            if stop is not None and count == stop[0]:
                raise stop[1]
            taken = collectives.seconds(
                case.collective, case.group_size, case.size_bytes,
                alpha_s=1.2345e-4, beta_s_per_byte=0.5e-9,
            )  # fmt: skip
            row = Timing(case, case.size_bytes, 3, taken, taken, taken, taken)
            self.add({"row": msgspec.to_builtins(row)})
            progress(case.label, 0.5)
        self.add({"device": DEVICE})

    monkeypatch.setattr(LinkCampaign, "run", run)
    monkeypatch.setattr(link_plot, "draw", lambda fits, title: b"drawn")
    monkeypatch.setattr(type(engines.load("oneflow")), "installed", lambda engine: True)
    monkeypatch.chdir(tmp_path)
    return seen


def stop_after(runs: list[dict[str, Any]], cases: int, error: BaseException) -> None:
    runs.append({"stop": (cases, error)})


def files() -> list[str]:
    return sorted(os.listdir())


def test_table_and_files(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(link_plot, "draw", DRAW)
    assert main(["fit-network", *TWO, "--timeout", "60"]) == 0
    assert files() == ["network.csv", "network.json", "network.png"]
    profile = profiles.load("network.json")
    assert (profile.name, profile.mode) == ("network", "graph")
    assert profile.link("all_reduce", Crossing("gpu", 2)).alpha_s == pytest.approx(1.2345e-4)
    assert Path("network.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert Path("network.png").read_bytes().startswith(b"\x89PNG")
    out, err = capsys.readouterr()
    for text in ("all-reduce", "send-receive", "123", "2.00", " 0 ", "wrote network.json"):
        assert text in out
    assert err.splitlines() == [
        "autoddl fit-network: all-reduce over 2 ranks (50 %)",
        "autoddl fit-network: send-receive over 2 ranks (50 %)",
    ]
    assert runs[0]["job"].timeout_s == 60


def test_the_example_of_its_help(runs: list[dict[str, Any]]) -> None:
    assert main(example("fit-network")) == 0
    assert runs[0]["settings"].quick and runs[0]["job"].nproc_per_node == 4
    assert profiles.load("network.json").link("all_reduce", Crossing("gpu", 4)).alpha_s > 0


def test_json(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit-network", *TWO, "--json"]) == 0
    profile = profiles.from_json(capsys.readouterr().out, "stdout")
    assert profile.name == "measured"
    assert files() == []
    assert main(["fit-network", *TWO, "--json", "-o", "x.json", "--csv", "y.csv"]) == 0
    assert profiles.load("x.json") == replace(profile, name="x")
    assert {"x.json", "y.csv"} <= set(files())


def test_nodes_of_kinds(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """One kind after the other, then what joins them, into one profile."""
    nodes = [*TWO, "--nnodes", "2", "--master-port", "29501", "--into", "network.json", "--kinds"]
    for kinds in ("slow", "fast", "slow,fast"):
        assert main(["fit-network", *nodes, kinds]) == 0, capsys.readouterr().err
    profile = profiles.load("network.json")
    assert profile.kinds == ("slow", "fast") and profile.levels == ("node", "gpu")
    assert {(link.level, link.kinds) for link in profile.links} == {
        ("gpu", ("slow",)), ("gpu", ("fast",)),
        ("node", ("slow",)), ("node", ("fast",)), ("node", ("fast", "slow")),
    }  # fmt: skip
    assert [run["settings"].device for run in runs] == [True, True, False]
    assert "gpu" not in {case.level for case in runs[2]["settings"].cases()}
    assert {"network.slow.csv", "network.fast.csv", "network.fast.slow.csv"} <= set(files())
    assert "node fast slow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--kinds a,b,c --nnodes 2 --master-port 29501 --into network.json", "kinds: got a, b, c"),
        ("--kinds a,b --into network.json", "kinds: got a, b on one node"),
        ("--kinds a,b --nnodes 2 --master-port 29501", "need --into FILE"),
        ("--kinds a,b --nnodes 2 --master-port 29501 --into network.json", "need --into FILE"),
        ("--kinds a --into alike.json", "its devices are all alike"),
        ("--into alike.json", "--into needs --kinds"),
        ("--kinds 4x", "'4x' is no name of a kind"),
    ],
)
def test_kinds_that_cannot_be(
    line: str, complaint: str, runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    profiles.load("cpu-loopback").save("alike.json")
    assert main(["fit-network", *TWO, *line.split()]) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1
    assert not runs and files() == ["alike.json"]


def test_the_device_of_another_profile(runs: list[dict[str, Any]]) -> None:
    assert main(["fit-network", *TWO, "--device", "cpu-loopback"]) == 0
    assert not runs[0]["settings"].device
    assert profiles.load("network.json").device == profiles.load("cpu-loopback").device


def test_other_nodes_write_nothing(runs: list[dict[str, Any]]) -> None:
    nodes = [
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--master-addr",
        "localhost",
        "--master-port",
        "99",
    ]
    assert main(["fit-network", *TWO, *nodes]) == 0
    assert files() == []
    assert runs[0]["job"].node_rank == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--nproc-per-node'"),
        ([*TWO, "-o", "no/such/folder.json"], "No such file or directory; give another with -o"),
        ([*TWO, "-o", "."], "Is a directory; give another with -o"),
        ([*TWO, "--csv", "no/such.csv"], "No such file or directory"),
        ([*TWO, "--plot", "no/such.png"], "No such file or directory"),
        ([*TWO, "--device", "missing"], "profile 'missing': no such file"),
    ],
)
def test_mistakes_are_found_before_measuring(
    arguments: list[str],
    message: str,
    runs: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(link_plot, "find_spec", lambda name: True)  # matplotlib or not
    assert main(["fit-network", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("autoddl fit-network: ")
    assert err.count("\n") == 1
    assert not runs
    assert files() == []


def test_without_matplotlib(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(link_plot, "find_spec", lambda name: None)
    assert main(["fit-network", *TWO, "--plot", "x.png"]) == 2
    assert "pip install 'autoddl[plots]'" in capsys.readouterr().err
    assert not runs
    assert main(["fit-network", *TWO]) == 0
    assert files() == ["network.csv", "network.json"]
    assert "no plot: matplotlib is not installed" in capsys.readouterr().err


DEAD = LaunchResult(
    **{
        **{name: None for name in LaunchResult.__dataclass_fields__},
        "returncodes": (-15, -11), "failed_rank": 1, "timed_out": False, "wall_s": 1.0,
        "logs": ("", ""), "log_dir": Path("logs"), "tail": ("last words",),
        "message": "rank 1 died", "exit_code": 139,
    }
)  # fmt: skip


def test_a_dead_rank(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(runs, 2, LaunchError(DEAD))
    assert main(["fit-network", *TWO]) == 139
    assert [line for line in capsys.readouterr().err.splitlines() if "%" not in line] == [
        "autoddl fit-network: the same command goes on: what was measured is in network.json.partial",
        "autoddl fit-network: rank 1 died",
        "last words",
        "autoddl fit-network: logs of all ranks: logs",
    ]
    assert files() == ["network.json.partial"]


def test_interrupted_it_goes_on(
    runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(runs, 3, KeyboardInterrupt())
    assert main(["fit-network", *TWO]) == 130
    assert "interrupted\nautoddl fit-network: the same command goes on" in capsys.readouterr().err
    assert main(["fit-network", *TWO]) == 0
    settings = runs[-1]["settings"]
    count = len(settings.cases()) + len(settings.overlap_cases())
    assert runs[-1]["rows"] == 3
    assert f"going on with network.json.partial: 3 of {count + 1} parts are there" in (
        capsys.readouterr().err
    )
    assert len(Path("network.csv").read_text().splitlines()) == 1 + len(settings.cases())
    assert "network.json.partial" not in files()


def test_partial_results_of_other_settings(
    runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(runs, 3, KeyboardInterrupt())
    assert main(["fit-network", *TWO]) == 130
    before = Path("network.json.partial").read_text()
    capsys.readouterr()
    assert main(["fit-network", *TWO, "--mode", "eager"]) == 2
    err = capsys.readouterr().err
    assert "mode 'graph' instead of 'eager'" in err and err.count("\n") == 1
    assert Path("network.json.partial").read_text() == before
    assert main(["fit-network", *TWO, "--mode", "eager", "--fresh"]) == 0


def test_a_truncated_partial_file_loses_one_case(
    runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(runs, 3, KeyboardInterrupt())
    main(["fit-network", *TWO])
    path = Path("network.json.partial")
    path.write_text(path.read_text()[:-10])
    assert main(["fit-network", *TWO]) == 0
    assert runs[-1]["rows"] == 2


def test_a_failure_leaves_the_old_file_alone(
    runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("network.json").write_text("old")
    stop_after(runs, 1, AutoDDLError("too noisy"))
    assert main(["fit-network", *TWO]) == 2
    assert Path("network.json").read_text() == "old"
    assert capsys.readouterr().err.splitlines()[-1] == "autoddl fit-network: too noisy"


@pytest.mark.parametrize("option", ["-o", "--csv", "--plot"])
def test_a_full_disk(
    option: str, runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib")
    # Beside /dev/full there may be no partial file: a link to it in our own folder.
    (tmp_path / "full").symlink_to("/dev/full")
    arguments = [*TWO, option, "full"]
    assert main(["fit-network", *arguments]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "autoddl fit-network: output file full: No space left on device; make room"
    )
    assert "nothing is measured twice" in last
    kept = "full.partial" if option == "-o" else "network.json.partial"
    assert kept in files()
    (tmp_path / "full").unlink()
    assert main(["fit-network", *arguments]) == 0
    assert runs[-1]["rows"] == len(runs[-1]["settings"].cases())
    assert kept not in files()


def test_a_full_disk_before_measuring(
    runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "network.json.partial").symlink_to("/dev/full")
    assert main(["fit-network", *TWO, "--fresh"]) == 2
    err = capsys.readouterr().err
    assert "partial results network.json.partial: No space left on device" in err
    assert err.count("\n") == 1
    assert not runs


def test_a_spoilt_write_leaves_the_old_profile(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("network.json").write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    assert main(["fit-network", *TWO]) == 2
    assert Path("network.json").read_text() == "old"
    assert [name for name in files() if name.startswith(".")] == []


def test_no_escape_sequence_reaches_the_terminal(
    runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither of an option nor of a file; brackets are no markup either."""
    odd = "\x1b[31m[b]\x9b"
    log = Path(f"{odd}all_reduce_perf.txt")
    log.write_text(NCCL.replace("A100-SXM4-40GB", f"{odd} A100-SXM4-40GB"))
    assert main(["fit-network", "--from-nccl-tests", str(log), "-o", f"{odd}.json"]) == 0
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).splitlines())
    assert r"wrote \x1b[31m[b]\x9b.json" in out
    assert r"device: NVIDIA \x1b[31m[b]\x9b A100" in out
    assert profiles.load(f"{odd}.json").name == r"\x1b[31m[b]\x9b"


NCCL = """# nccl-tests version 2.13.8
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  1 on  host device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  1 on  host device  1 [0x0a] NVIDIA A100-SXM4-40GB
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    30.00   34.95   34.95      0    30.00   34.95   34.95      0
     4194304       1048576     float     sum      -1    60.00   69.90   69.90      0    60.00   69.90   69.90      0
# Avg bus bandwidth    : 50.0
"""  # noqa: E501


def test_nccl_tests(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    Path("all_reduce_perf.txt").write_text(NCCL)
    assert main(["fit-network", "--from-nccl-tests", "all_reduce_perf.txt", "-o", "a100.json"]) == 0
    profile = profiles.load("a100.json")
    assert profile.name == "a100"
    seconds = [
        profile.collective_s("all_reduce", Crossing("gpu", 2), n) for n in (1 << 20, 1 << 22)
    ]
    assert seconds == pytest.approx([30e-6, 60e-6])
    assert "wrote a100.json" in capsys.readouterr().out
    assert not runs
    assert (
        main(
            [
                "fit-network",
                "--from-nccl-tests",
                "all_reduce_perf.txt",
                "--json",
                "--memory",
                "7GiB",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["devices"][""]["memory_bytes"] == 7 << 30
    assert main(["fit-network", "--from-nccl-tests", "missing.txt"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("autoddl fit-network: nccl-tests file missing.txt: can't be read")
    assert err.count("\n") == 1
    assert files() == ["a100.json", "all_reduce_perf.txt"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("     4194304       1048576", "     1048576        262144"),
         "all_reduce_perf.txt: a single message size, which does not tell latency from bandwidth; run"),
        (lambda text: text.replace("69.90      0    60.00", "69.90      7    60.00"),
         "all_reduce_perf.txt, line 10: #wrong is '7', so results are wrong; mend what is, and run the"),
        (lambda text: text.replace("1048576     float", "1048576      half"),
         "all_reduce_perf.txt, line 10: elements of type 'half', of 'float' before; give one type in a"),
    ],
)  # fmt: skip
def test_nccl_tests_that_tell_nothing(
    runs: list[dict[str, Any]], change: Callable[[str], str], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert change(NCCL) != NCCL
    Path("all_reduce_perf.txt").write_text(change(NCCL))
    assert main(["fit-network", "--from-nccl-tests", "all_reduce_perf.txt", "-o", "a.json"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"autoddl fit-network: {said}") and err.count("\n") == 1 and not out
    assert files() == ["all_reduce_perf.txt"] and not runs


# ---- real ranks ----------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "autoddl.fit_network", "--nproc-per-node", "2", *arguments]


SHORT = (
    "--collectives", "all-reduce", "-b", "16K", "-e", "4M", "-f", "256",
    "--quick", "--budget", "1", "--timeout", str(LIMIT_S),
)  # fmt: skip


@pytest.fixture
def environment() -> dict[str, str]:
    root = str(Path(store.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root}


def check(profile: Profile) -> None:
    for link in profile.links:
        short, long = (
            profile.collective_s(link.collective, Crossing("gpu", 2), n) for n in (1e4, 4e6)
        )
        assert 0 < short <= long
    assert {link.group_size for link in profile.links} == {2}
    assert profile.device.peak_flops["float32"] > 1e8
    assert profile.device.memory_bytes_per_s > 1e8
    assert 0 < profile.device.op_overhead_s < 0.05


def ranks_of(process: subprocess.Popen[str]) -> Iterator[int]:
    """Return the processes below `process` that run OneFlow ranks."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(") ")[2].split()[1])
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == process.pid and b"launch/main.py" in line:
            yield int(stat.parent.name)


@pytest.mark.oneflow
@pytest.mark.ranks
@pytest.mark.slow
def test_two_real_ranks_in_both_modes_though_one_is_killed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    partial = tmp_path / "pair.json.partial"
    with subprocess.Popen(
        command(*SHORT, "--mode", "both", "-o", "pair.json"),
        cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        end = time.monotonic() + LIMIT_S
        while not partial.exists() or len(partial.read_text().splitlines()) < 2:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        kept = partial.read_text().splitlines()[1]
        os.kill(next(ranks_of(process)), signal.SIGKILL)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert "was killed by SIGKILL" in err and "trying once more" in err
    assert "wrote pair.json" in out
    assert not partial.exists()
    made = profiles.load(tmp_path / "pair.json")
    check(made)
    for found in (made.overlap, made.overhead):
        assert set(found) == {"gpu"} or re.search("ops beside .* drowned in noise", err)
    table = (tmp_path / "pair.csv").read_text()
    assert len(table.splitlines()) == 1 + 2 * 2 + 2  # the last: ops beside long and short boxings
    seconds = json.loads(kept)["row"]["seconds"]
    assert f"{seconds:.9g}" in table  # not measured again
