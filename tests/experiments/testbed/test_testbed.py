"""Testbeds: what is described, what is left behind, who failed, and whether links have their rate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.launch.launcher import LaunchArgumentError, LaunchError
from experiments.lib import cli
from experiments.testbed import Testbed, TestbedError, network, quotas
from experiments.testbed.__main__ import command as whole
from experiments.testbed.__main__ import payload_bit_s
from tests.support.on_ranks import LIMIT_S

ROOT = Path(autoddl.__file__).parents[1]
NAMES = Path("/run/netns")


@pytest.fixture(scope="module")
def needs_namespaces() -> None:
    """Skip where this process may not make network namespaces."""
    try:
        with Testbed(nodes=1, ranks=1, rate="1gbit"):
            pass
    except TestbedError as error:
        pytest.skip(f"no testbed on this machine: {error}")


def namespaces(test: Any) -> Any:
    """Mark a test that makes network namespaces."""
    return pytest.mark.testbed(pytest.mark.usefixtures("needs_namespaces")(test))


def names_of(pid: int) -> set[str]:
    if not NAMES.exists():
        return set()
    return {path.name for path in NAMES.iterdir() if path.name.startswith(f"autoddl-{pid}-")}


def until(condition: Callable[[], Any], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


# Rank 0 listens on the master port, as OneFlow's does, so that the others start. Each rank has a
# child, and leaves "PID CHILD" in a file.
LINGER = """
import os, socket, subprocess, sys, time
rank = int(os.environ["RANK"])
if rank == 0:
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
child = subprocess.Popen(["sleep", "1000"])
with open(f"{sys.argv[1]}/{rank}.tmp", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(f"{sys.argv[1]}/{rank}.tmp", f"{sys.argv[1]}/{rank}.pids")
time.sleep(float(sys.argv[2]))
if rank == 3:
    print("last words")
    sys.exit(7)
time.sleep(1000)
"""


def sleeper(inside: Callable[[list[str]], list[str]]) -> subprocess.Popen[bytes]:
    """Start a process in a namespace and wait until it is there: until then nothing finds it."""
    script = ["sh", "-c", "echo there; exec sleep 1000"]
    process = subprocess.Popen(inside(script), stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"there\n"
    return process


def lingering(folder: Path) -> list[int]:
    return [int(pid) for file in folder.glob("*.pids") for pid in file.read_text().split()]


@pytest.fixture
def linger(tmp_path: Path) -> str:
    path = tmp_path / "linger.py"
    path.write_text(LINGER)
    return str(path)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line as a process of its own."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.testbed", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def main(argv: list[str]) -> int:
    return cli.run(whole, "testbed", argv)


# ---- what is left behind -------------------------------------------------------------------------


@namespaces
def test_namespaces_are_there_and_then_gone() -> None:
    with Testbed(nodes=3, ranks=1, rate="1gbit") as bed, Testbed(nodes=1, ranks=1, rate="1gbit"):
        assert len(names_of(os.getpid())) == 6
        links = bed.inside(2, ["ip", "-o", "-4", "addr"])
        assert "10.77.0.3/24" in subprocess.run(links, capture_output=True, text=True).stdout
        assert not network.clean()  # ours are not stale
    assert not names_of(os.getpid())
    with pytest.raises(TestbedError, match="the testbed is not there"):
        bed.run(["-m", "this"])


@namespaces
def test_namespaces_and_their_processes_are_gone_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), Testbed(nodes=1, ranks=1, rate="1gbit") as bed:
        process = sleeper(lambda script: bed.inside(0, script))
        raise ZeroDivisionError
    assert not names_of(os.getpid())
    assert process.wait(5) == -signal.SIGKILL


@namespaces
def test_nothing_is_left_of_a_testbed_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_SYSCTLS", {"no_such_setting": "1"})
    with pytest.raises(TestbedError, match="no_such_setting"):
        Testbed(nodes=2, ranks=1, rate="1gbit").__enter__()
    assert not names_of(os.getpid())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@namespaces
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(
    command: Callable[..., subprocess.Popen[str]], linger: str, tmp_path: Path, signum: int
) -> None:
    line = f"--nodes 2 --ranks 2 --rate 1gbit -- {linger} {tmp_path} 1000"
    process = command(*line.split())
    until(lambda: len(lingering(tmp_path)) == 8)
    process.send_signal(signum)
    process.communicate(timeout=10)
    assert process.returncode == 128 + signum
    assert not names_of(process.pid)
    assert not any(alive(pid) for pid in lingering(tmp_path))


@namespaces
def test_the_next_start_removes_what_a_killed_testbed_left(
    command: Callable[..., subprocess.Popen[str]], linger: str, tmp_path: Path
) -> None:
    process = command(*f"--nodes 2 --ranks 2 --rate 1gbit -- {linger} {tmp_path} 1000".split())
    until(lambda: len(lingering(tmp_path)) == 8)
    left = names_of(process.pid)
    process.kill()
    process.communicate()
    assert left == names_of(process.pid) and len(left) == 3
    # a process that nobody else ends
    name = min(left)
    stray = sleeper(lambda script: ["ip", "netns", "exec", name, *script])
    assert set(network.clean()) >= left
    assert not names_of(process.pid)
    assert stray.wait(5) == -signal.SIGKILL
    until(lambda: not any(alive(pid) for pid in lingering(tmp_path)))


# ---- runs ----------------------------------------------------------------------------------------


@namespaces
def test_a_rank_that_fails_ends_all_nodes_and_is_named(linger: str, tmp_path: Path) -> None:
    with Testbed(nodes=2, ranks=2, rate="1gbit") as bed:
        result = bed.run(
            [linger, str(tmp_path), "0.5"], timeout_s=LIMIT_S, log_dir=tmp_path / "logs"
        )
    assert (result.failed_rank, result.exit_code) == (3, 7)
    assert result.message == (
        "rank 3 of 4 on node 1 failed with exit code 7; ended the ranks still running: 0, 1, 2"
    )
    assert result.tail == ("last words",)
    assert result.returncodes[3] == 7 and not result.timed_out
    assert (tmp_path / "logs" / "rank3.log").read_text() == "last words\n"
    assert len(lingering(tmp_path)) == 8 and not any(alive(pid) for pid in lingering(tmp_path))


# Rank 1 fails and leaves a child that does not want to go; rank 0 fails when it is told to end.
TWO_FAILURES = """
import os, signal, socket, subprocess, sys, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("lost rank 1"))
    time.sleep(1000)
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000"])
time.sleep(0.3)
sys.exit(3)
"""


@namespaces
def test_of_two_failures_the_first_is_named(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_FAILURES)
    with Testbed(nodes=2, ranks=1, rate="1gbit") as bed:
        result = bed.run([str(script)], timeout_s=LIMIT_S, stream_rank0=False)
    assert result.returncodes == (1, 3)
    assert (result.failed_rank, result.exit_code) == (1, 3), result


@namespaces
def test_the_time_limit_ends_all_nodes(linger: str, tmp_path: Path) -> None:
    with (
        pytest.raises(LaunchError, match="time limit of 1\\.5 s reached") as error,
        Testbed(nodes=2, ranks=1, rate="1gbit") as bed,
    ):
        bed.run([linger, str(tmp_path), "1000"], timeout_s=1.5, check=True)
    assert error.value.result.exit_code == 124
    assert not any(alive(pid) for pid in lingering(tmp_path))


@namespaces
def test_a_missing_script_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["--nodes", "1", "--ranks", "1", "--rate", "1gbit", "--", "python", "no/such.py"]) == 2
    )
    err = capsys.readouterr().err
    assert "script 'no/such.py' does not exist" in err and err.count("\n") == 1
    with (
        Testbed(nodes=1, ranks=1, rate="1gbit") as bed,
        pytest.raises(LaunchArgumentError, match="nothing to run"),
    ):
        bed.run([])


@namespaces
def test_rank_0_is_shown_and_all_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "show.py"
    script.write_text(
        "import os, sys\n"
        "print(*[os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MINE')], sys.argv[1])\n"
    )
    with Testbed(nodes=1, ranks=2, rate="1gbit") as bed:
        result = bed.run([str(script), "--x"], env={"MINE": "yes"}, timeout_s=LIMIT_S)
    assert result.ok and result.returncodes == (0, 0), result
    assert result.logs == ("0 2 10.77.0.1 yes --x\n", "1 2 10.77.0.1 yes --x\n")
    assert capsys.readouterr().out == result.logs[0]


# ---- links ---------------------------------------------------------------------------------------


@namespaces
@pytest.mark.parametrize("rate", ["100mbit", "400mbit"])
def test_links_have_their_rate_both_ways_at_once(rate: str) -> None:
    with Testbed(nodes=2, ranks=1, rate=rate) as bed:
        (wanted, _) = bed.spec.rates_bit_s
        # other work on this machine can slow a link down for a while, never speed it up
        best = 0.0
        for _ in range(8):
            best = max(best, payload_bit_s(bed, 0.7))
            if best >= 0.9 * wanted:
                break
    assert best == pytest.approx(wanted, rel=0.15)


ONEFLOW = """
import numpy as np, oneflow as flow
rank, count = flow.env.get_rank(), flow.env.get_world_size()
placement = flow.placement("cpu", ranks=list(range(count)))
rows = np.arange(8, dtype="float32").reshape(4, 2) * (rank + 1)
whole = flow.tensor(rows).to_global(placement=placement, sbp=flow.sbp.partial_sum)
got = whole.to_global(sbp=flow.sbp.broadcast).to_local().numpy().copy()
assert (got == np.arange(8).reshape(4, 2) * sum(range(1, count + 1))).all(), got
print("added over", count)
"""


@namespaces
@pytest.mark.oneflow
def test_oneflow_ranks_meet_across_nodes(tmp_path: Path) -> None:
    script = tmp_path / "add.py"
    script.write_text(ONEFLOW)
    with Testbed(nodes=2, ranks=1, rate="500mbit") as bed:
        result = bed.run([str(script)], timeout_s=LIMIT_S, check=True, stream_rank0=False)
    assert result.logs[0].endswith("added over 2\n")


# ---- shares of cores -----------------------------------------------------------------------------

BUSY = """
import os, time
begin, used = time.perf_counter(), time.process_time()
while time.perf_counter() - begin < 1.0:
    pass
share = (time.process_time() - used) / (time.perf_counter() - begin)
print(os.environ["RANK"], *os.sched_getaffinity(0), share)
"""


@namespaces
def test_ranks_get_their_shares_of_cores(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    shares = (0.4, 0.4, 0.2, 0.2)
    try:
        bed = Testbed(nodes=4, ranks=1, rate="1gbit", cpu=shares)
        with bed:
            result = bed.run([str(script)], timeout_s=LIMIT_S, check=True, stream_rank0=False)
            alone = subprocess.run(
                bed.inside(2, [sys.executable, str(script)]), env=os.environ | {"RANK": "2"},
                capture_output=True, text=True, check=True, timeout=LIMIT_S,
            )  # fmt: skip
    except TestbedError as error:
        pytest.skip(f"no CPU shares on this machine: {error}")
    got = [[float(word) for word in log.split()] for log in (*result.logs, alone.stdout)]
    assert [row[1] for row in got[:4]] == list(bed.cores)
    for row, share in zip(got, (*shares, shares[2]), strict=True):
        assert 0 < row[2] <= 1.15 * share  # less where other work needs the cores, too
    left = (
        folder.glob(f"autoddl-{os.getpid()}-*") for folder in (quotas.ROOT, quotas.ROOT / "cpu")
    )
    assert not [path for found in left for path in found]


def test_groups_of_both_versions_of_the_interface(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    (first / "cpu").mkdir(parents=True)
    (first / "cpu" / "cgroup.procs").touch()
    second.mkdir()
    (second / "cgroup.controllers").write_text("cpu memory\n")
    quotas.create({"a": 0.3, "b": 1.0}, first)
    quotas.create({"a": 0.3}, second)
    assert (first / "cpu" / "a" / "cpu.cfs_quota_us").read_text() == "3000"
    assert (first / "cpu" / "b" / "cpu.cfs_quota_us").read_text() == "10000"
    assert (first / "cpu" / "a" / "cpu.cfs_period_us").read_text() == "10000"
    assert (second / "a" / "cpu.max").read_text() == "3000 10000"
    assert (second / "cgroup.subtree_control").read_text() == "+cpu"


def test_no_controller_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="no cgroup controller for CPU shares") as error:
        quotas.create({"a": 0.3}, tmp_path)
    assert "leave --cpu out" in str(error.value) and "\n" not in str(error.value)
