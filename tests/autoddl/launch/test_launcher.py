"""Start real processes: ranks that need only the standard library, and a few with OneFlow."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import autoddl.launch.launcher
from autoddl.cli.app import main
from autoddl.launch import ports, supervise
from autoddl.launch.job import LaunchJob
from autoddl.launch.launcher import LaunchArgumentError, LaunchError, LaunchResult, launch, run
from autoddl.launch.output import LineFilter, is_noise
from tests.support.rank_scripts import PRELUDE, Write

LIMIT_S = 300.0  # on anything that has to come about at last
ROOT = Path(autoddl.launch.launcher.__file__).parents[2]
NOISE = (
    "libibverbs not available, ibv_fork_init skipped",
    "W20261121 03:13:56.281930  2449 cuda_device_descriptor_class.cpp:48] "
    "CUDA driver version is insufficient for CUDA runtime version",
    "E20261121 03:15:22.344082  3234 cuda_device_manager_factory.cpp:65] "
    "Failed to get cuda runtime version: "
    "CUDA driver version is insufficient for CUDA runtime version",
)
RUN = "from autoddl.cli.app import main; sys.exit(main(['run', *sys.argv[1:]]))"
# Rank 1 goes on when rank 0 lets it.
IN_TURN = """
def let_rank_1_go():
    server.accept()[0].send(b"go")

def wait_for_rank_0():
    socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))).recv(2)
"""
# Every rank starts a child that would stay, and leaves "RANK PID CHILD" in the working directory.
LINGER = """
child = subprocess.Popen(["sleep", "1000"])
with open(f"pids{rank}.tmp", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(f"pids{rank}.tmp", f"pids{rank}")
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _temporary_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def until_gone(pids: list[int]) -> None:
    until(lambda: not any(alive(pid) for pid in pids))  # who is killed is there for a moment


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line as a process of its own, in tmp_path."""
    started = []

    def start(*arguments: str, code: str = RUN) -> subprocess.Popen[str]:
        code = f"import sys; from autoddl.launch.launcher import launch; {code}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temp")}
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env=environment,
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


def lingering_pids(folder: Path, ranks: int) -> list[int]:
    files = [folder / f"pids{rank}" for rank in range(ranks)]
    until(lambda: all(file.exists() for file in files))
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(pids) == 2 * ranks and all(alive(pid) for pid in pids)
    return pids


# ---- starting ------------------------------------------------------------------------------------


def test_ranks_get_oneflows_environment_and_rank_0_listens_before_the_others_start(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_START_WAIT_S", 1000.0)  # only a port lets them start
    script = write(
        """
began = time.monotonic()
if rank == 0:
    time.sleep(0.5)
    began = time.monotonic()
    server = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    peers = [server.accept() for _ in range(2)]  # the others start while this one listens
else:
    socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
names = "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK GLOG_minloglevel OMP_NUM_THREADS MINE"
print(json.dumps({"began": began, "group": os.getpgrp() == os.getpid(),
                  **{name: os.environ.get(name) for name in names.split()}}))
""",
        prelude=PRELUDE.replace("if rank == 0", "if False"),
    )
    result = launch(
        [script], nproc_per_node=3, env={"MINE": "x", "OMP_NUM_THREADS": "2"}, timeout_s=LIMIT_S
    )
    assert (result.ok, result.exit_code, result.message) == (True, 0, "")
    assert result.returncodes == (0, 0, 0) and result.failed_rank is None
    seen = [json.loads(log) for log in result.logs]
    assert [s["RANK"] for s in seen] == [s["LOCAL_RANK"] for s in seen] == ["0", "1", "2"]
    assert {s["MASTER_PORT"] for s in seen} == {seen[0]["MASTER_PORT"]}
    for s in seen:
        assert s["group"] and s["MASTER_ADDR"] == "127.0.0.1" and s["WORLD_SIZE"] == "3"
        assert s["GLOG_minloglevel"] == "2" and s["OMP_NUM_THREADS"] == "2" and s["MINE"] == "x"
    assert all(s["began"] > seen[0]["began"] for s in seen[1:])


def test_one_rank_alone(write: Write) -> None:
    result = launch([write("print(os.environ['WORLD_SIZE'], sys.argv[1:])"), "a"], nproc_per_node=1)
    assert result.ok and result.logs == ("1 ['a']\n",)


def test_others_start_though_rank_0_never_listens(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervise, "_START_WAIT_S", 0.1)
    came = tmp_path / "rank 1 came"
    script = write(
        f"""
if os.environ["RANK"] == "1":
    open({str(came)!r}, "w").close()
while not os.path.exists({str(came)!r}):
    time.sleep(0.02)
""",
        prelude="import os, time\n",
    )
    assert launch([script], nproc_per_node=2, timeout_s=LIMIT_S).ok


def test_others_start_when_rank_0_has_ended_without_listening(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_START_WAIT_S", 1000.0)
    result = launch([write("", prelude="")], nproc_per_node=2, timeout_s=LIMIT_S)
    assert result.returncodes == (0, 0)


def test_another_node_waits_for_the_master_and_numbers_its_ranks_after_it(write: Write) -> None:
    port = ports.pick_port()
    opened: list[tuple[float, socket.socket]] = []

    def open_port() -> None:
        opened.append((time.monotonic(), socket.create_server(("127.0.0.1", port))))

    opening = threading.Timer(0.5, open_port)
    opening.start()
    script = write("print(os.environ['RANK'], os.environ['LOCAL_RANK'], time.monotonic())")
    result = launch([script], nproc_per_node=2, nnodes=2, node_rank=1, master_port=port)
    opening.join()
    opened[0][1].close()
    seen = [log.split() for log in result.logs]
    assert result.ok and [words[:2] for words in seen] == [["2", "0"], ["3", "1"]]
    assert all(float(words[2]) > opened[0][0] for words in seen)


def test_launch_works_in_another_thread(write: Write) -> None:
    results: list[LaunchResult] = []
    thread = threading.Thread(
        target=lambda: results.append(launch([write("print(rank)")], nproc_per_node=2))
    )
    thread.start()
    thread.join()
    assert results[0].ok and results[0].logs == ("0\n", "1\n")


# ---- output --------------------------------------------------------------------------------------


def test_rank_0_is_shown_stream_by_stream_without_noise(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(
        f"""
for line in {NOISE!r}:
    print(line, file=sys.stderr)
print(f"out {{rank}} α")
print(f"err {{rank}} cuda_device", file=sys.stderr)
"""
    )
    result = launch([script], nproc_per_node=2)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("out 0 α\n", "err 0 cuda_device\n")
    assert "out 1 α" in result.logs[1] and NOISE[0] in result.logs[1]
    launch([script], nproc_per_node=2, stream_rank0=False)
    assert capsys.readouterr() == ("", "")


def test_output_comes_while_the_rank_runs_also_without_line_end(
    write: Write, launcher: Callable[..., subprocess.Popen[str]]
) -> None:
    process = launcher("--nproc-per-node=1", write("print('step', end=''); time.sleep(1000)"))
    assert process.stdout is not None and process.stdout.read(4) == "step"
    process.terminate()
    assert process.wait(LIMIT_S) == 143


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_line_filter_drops_noise_however_the_bytes_are_cut(size: int) -> None:
    text = f"α\r{NOISE[0]}\n10 %\r20 %\r\n\n{NOISE[1]}\n{NOISE[2]}\nend"
    data = text.encode()
    line_filter = LineFilter()
    shown = "".join(line_filter.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert shown + line_filter.flush() == "α\r10 %\r20 %\r\n\nend"


def test_line_filter_shows_the_start_of_a_line_and_then_its_rest() -> None:
    line_filter = LineFilter()
    assert line_filter.feed(b"loss ") == "" and line_filter.flush() == "loss "
    assert line_filter.feed(b"0.5\nx\n") == "0.5\nx\n" and line_filter.flush() == ""


def test_only_the_engines_own_lines_are_noise() -> None:
    assert all(is_noise(line) for line in NOISE)
    assert not is_noise("my model uses libibverbs not available, ibv_fork_init skipped")
    assert not is_noise("F20261121 03:15:22.3  3 cuda_device_manager_factory.cpp:65] out of memory")
    assert not is_noise("RuntimeError: CUDA driver version is insufficient")


# ---- failing -------------------------------------------------------------------------------------


def test_failing_rank_ends_the_others_and_is_reported(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(
        f"""
if rank == 2:
    for i in range(30):
        print("line", i)
    print({NOISE[0]!r})
    raise ValueError("boom")
time.sleep(1000)
"""
    )
    assert main(["run", "--nproc-per-node", "4", script]) == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == (
        "autoddl run: rank 2 of 4 failed with exit code 1; ended the ranks still running: 0, 1, 3"
    )
    assert shown[1] == "---- last lines of rank 2 ----"
    assert shown[2:18] == [f"line {i}" for i in range(14, 30)]
    # The traceback starts in the user's script.
    assert shown[18:20] == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 11, in <module>',
    ]
    assert shown[-3:-1] == ["ValueError: boom", "----"]
    folder = Path(shown[-1].removeprefix("logs of all ranks: "))
    assert NOISE[0] in (folder / "rank2.log").read_text()


def test_check_raises_one_line_with_the_result(write: Write) -> None:
    script = write("sys.exit('no data') if rank == 1 else time.sleep(1000)")
    with pytest.raises(LaunchError) as caught:
        launch([script], nproc_per_node=2, check=True)
    message = "rank 1 of 2 failed with exit code 1; ended the ranks still running: 0"
    assert str(caught.value) == message
    assert caught.value.tail == ("no data",)
    assert caught.value.result.returncodes == (-signal.SIGTERM, 1)


def test_rank_0_is_not_shown_any_more_once_another_rank_has_failed(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(
        """
if rank == 1:
    wait_for_rank_0()
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit("lost rank 1"))
print("step", end="", flush=True)
let_rank_1_go()
time.sleep(1000)
""",
        prelude=PRELUDE + IN_TURN,
    )
    result = launch([script], nproc_per_node=2)
    assert capsys.readouterr() == ("step", "")
    assert result.failed_rank == 1 and result.logs[0] == "steplost rank 1\n"


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(write: Write) -> None:
    script = write(
        """
if rank == 1:
    wait_for_rank_0()
    os.kill(os.getpid(), signal.SIGSEGV)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
let_rank_1_go()
time.sleep(1000)
""",
        prelude=PRELUDE + IN_TURN,
    )
    result = launch([script], nproc_per_node=2, grace_s=0.5)
    assert result.returncodes == (-signal.SIGKILL, -signal.SIGSEGV)
    assert (result.failed_rank, result.exit_code) == (1, 128 + signal.SIGSEGV)
    assert "rank 1 of 2 was killed by SIGSEGV" in result.message


def test_the_first_to_fail_is_reported_not_the_one_it_brings_down(write: Write) -> None:
    script = write(
        """
if rank == 0:
    peer, _ = server.accept()
    stat = f"/proc/{int(peer.makefile().readline())}/stat"
    while ") Z" not in open(stat).read():  # it stays a zombie until all have ended
        time.sleep(0.001)
    os._exit(9)
peer = socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
peer.send(f"{os.getpid()}\\n".encode())
os._exit(3)
"""
    )
    result = launch([script], nproc_per_node=2)
    assert (result.failed_rank, result.exit_code) == (1, 3)


@pytest.mark.parametrize(
    ("body", "code", "log"),
    [
        ("sys.exit()", 0, "bye\n"),
        ("sys.exit(0)", 0, "bye\n"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", 130, None),
        ("sys.stdout.close(); 1 / 0", 1, None),
    ],
)
def test_exit_codes_are_those_of_python(write: Write, body: str, code: int, log: str) -> None:
    script = write(f"import atexit; atexit.register(print, 'bye')\n{body}")
    result = launch([script], nproc_per_node=1)
    assert result.exit_code == code
    assert log is None or result.logs == (log,)


def test_what_the_callers_own_turn_raises_ends_the_ranks(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(LINGER)

    def on_turn() -> None:
        if all((tmp_path / f"pids{rank}").exists() for rank in range(2)):
            raise OSError("full")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="full"):
        run(LaunchJob((script,), 2), on_turn)
    pids = [int(pid) for rank in range(2) for pid in (tmp_path / f"pids{rank}").read_text().split()]
    assert len(pids) == 4
    until_gone(pids)


def test_time_limit(
    write: Write,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = [tmp_path / f"started{rank}" for rank in range(2)]
    monkeypatch.setattr(
        supervise, "monotonic", lambda: 1.0 if all(file.exists() for file in started) else 0.0
    )
    script = write(f"open({str(tmp_path)!r} + f'/started{{rank}}', 'w'); time.sleep(1000)")
    assert main(["run", "--nproc-per-node=2", "--timeout=1", script]) == 124
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "autoddl run: time limit of 1 s reached; ended the ranks still running: 0, 1"


# ---- no orphans ----------------------------------------------------------------------------------


def test_what_ranks_started_ends_with_them(write: Write, tmp_path: Path) -> None:
    script = write("child = subprocess.Popen(['sleep', '1000'])\nprint(child.pid)\nsys.exit(rank)")
    for ranks, code in ((1, 0), (2, 1)):
        result = launch([script], nproc_per_node=ranks)
        assert result.exit_code == code
        until_gone([int(log) for log in result.logs])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_launcher_ends_everything(
    write: Write,
    launcher: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    signum: signal.Signals,
) -> None:
    process = launcher("--nproc-per-node", "2", write(LINGER))
    pids = lingering_pids(tmp_path, 2)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signum
    until_gone(pids)
    assert stderr.startswith(f"autoddl run: interrupted by {signum.name}")
    assert "Traceback" not in stderr


def test_interrupt_during_a_call_from_python_is_raised_there(
    write: Write, launcher: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    code = f"""
try:
    launch([{write(LINGER)!r}], nproc_per_node=1)
except KeyboardInterrupt:
    sys.exit(55)
"""
    process = launcher(code=code)
    pids = lingering_pids(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 55
    until_gone(pids)


def test_killed_launcher_leaves_no_orphans(
    write: Write, launcher: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launcher("--nproc-per-node", "2", write(LINGER))
    pids = lingering_pids(tmp_path, 2)
    process.kill()
    until_gone(pids)


def test_bad_input_raises_when_called_from_python() -> None:
    with pytest.raises(LaunchArgumentError, match="does not exist"):
        launch(["missing.py"], nproc_per_node=1)


def test_no_file_beside_the_rank_script_hides_a_standard_module() -> None:
    names = {path.stem for path in Path(supervise.__file__).parent.glob("*.py")}
    assert "main" in names and not names & set(sys.stdlib_module_names)


# ---- OneFlow -------------------------------------------------------------------------------------

TRAIN = """
import os, sys
import oneflow as flow
rank = int(os.environ["RANK"])
ranks = flow.placement("cpu", list(range(int(os.environ["WORLD_SIZE"]))))
model = flow.nn.Linear(8, 8).to_global(ranks, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
x = flow.ones(2, 8).to_global(ranks, flow.sbp.split(0))
for step in range(6):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.numpy()
    if step == 3 and rank == 2:
        FAIL
print("trained on", x.shape[0], "rows")
"""


@pytest.mark.oneflow
@pytest.mark.ranks
def test_oneflow_ranks_find_each_other(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rank 0 has to listen where we look: a rank that came too early would lose 10 s.
    monkeypatch.setattr(supervise, "_START_WAIT_S", 1000.0)
    script = write(TRAIN.replace("FAIL", "pass"), prelude="")
    result = launch([script], nproc_per_node=2, timeout_s=LIMIT_S)
    assert result.ok, (result.message, result.logs)
    assert capsys.readouterr() == ("trained on 4 rows\n", "")


@pytest.mark.oneflow
@pytest.mark.ranks
def test_oneflow_rank_that_fails_while_training_ends_the_others(write: Write) -> None:
    script = write(TRAIN.replace("FAIL", "print('last words'); sys.exit(7)"), prelude="")
    result = launch([script], nproc_per_node=3, timeout_s=LIMIT_S, stream_rank0=False)
    assert (result.failed_rank, result.exit_code) == (2, 7), result.message
    assert result.tail[0] == "last words"
    assert "ended the ranks still running: 0, 1" in result.message
