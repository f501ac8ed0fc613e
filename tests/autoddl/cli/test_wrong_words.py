"""Wrong words on the command line: one line on stderr and exit code 2, soon, and no file is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoddl.cli import app
from autoddl.cli.app import COMMANDS
from tests.support.clusters import cluster
from tests.support.programs import mlp

LONG, LIMIT_S, HANGS_S, LONGEST = "x" * 5000, 5.0, 600, 400
ODD = ["x", LONG, "\x1b[31mred", "a\nb", "½", "[red]x[/red]"]
NAMES = [w for w in [*ODD, "", "4x", "a b", "-"] if w != "x"]
PINS = ["", "=", "x=", "=B", "*=Z", "*=B,B,B", "nothing=B", "*=\x1b[31m", "*=S0|", "*=!B|S0|S1|P"]
PINS += ["*=stage 1", "*=stage x", "*=rack: B"]
WHOLE = [*ODD, "", "-1", "2.5", "nan", "inf", "1e3", "9" * 400, "9" * 5000, "0x4"]
SECONDS = [*ODD, "", "-1", "nan", "-inf", "1e400x"]
UNREADABLE = ["missing.json", "folder", "pipe", "empty", "noise", "cut.json", "a\nb", LONG, "nul\0"]
UNWRITABLE = ["folder", "no/such/folder/file", "nul\0", LONG, "file.txt/x"]
BASES = {
    "run": ["--nproc-per-node", "1", "script.py"],
    "try": ["--nproc-per-node", "1", "script.py"],
    "fit-network": ["--nproc-per-node", "2", "--quick"],
    "fit-device": ["--nproc-per-node", "2", "--quick"],
    "codegen": ["plan.json"],
    "schedule": ["plan.json"],
    "trace": ["plan.json"],
    "explain": ["plan.json", "--profile", "network.json", "--why", "model.fc1"],
    "diff": [],
    "recost": ["plan.json", "--profile", "network.json", "--budget", "0"],
    "whatif": ["program.json", "--mesh", "2", "--batch", "4", "--budget", "1"],
    "fit": ["program.json", "--within", "1s", "--budget", "1"],
    "report": ["plan.json", "--output", "new.html"],
    "merge": ["checkpoint"],
    "sign": [],
    "profiles": [],
    "capture": ["script.py:build", "--output", "new.json"],
    "plan": ["program.json", "--mesh", "2", "--budget", "1", "--output", "new.json"],
}
VALUES: dict[tuple[str, str], list[str]] = {
    ("run", "--nproc-per-node"): [*WHOLE, "0", "4:", ":", "4:2", "0:2", "2:2:2"],
    ("run", "--max-restarts"): WHOLE,
    ("run", "--nnodes"): [*WHOLE, "0"],
    ("run", "--node-rank"): [*WHOLE, "1"],
    ("run", "--master-port"): [*WHOLE, "0", "65536"],
    ("run", "--timeout"): [*SECONDS, "0"],
    ("run", "--share-cores"): ODD,
    ("run", "--kind"): NAMES,
    ("run", "--master-addr"): ["a..b", LONG, "", "nul\0"],
    ("run", "--log-dir"): ["file.txt", "nul\0", LONG, "file.txt/x"],
    ("try", "--nproc-per-node"): [*WHOLE, "0"],
    ("try", "--top"): [*WHOLE, "0", "-3"],
    ("try", "--steps"): [*WHOLE, "0"],
    ("try", "--timeout"): [*SECONDS, "0"],
    ("try", "--output"): ["file.txt", "nul\0", LONG, "file.txt/x"],
    ("fit-network", "--nproc-per-node"): [*WHOLE, "0"],
    ("fit-network", "--nnodes"): [*WHOLE, "0"],
    ("fit-network", "--minbytes"): [*ODD, "", "-1", "nan", "0", "1T"],
    ("fit-network", "--maxbytes"): [*ODD, "", "-1", "nan", "0", "1"],
    ("fit-network", "--stepfactor"): [*ODD, "", "nan", "inf", "0", "1", "-2", "1.0000001"],
    ("fit-network", "--iters"): [*WHOLE, "0"],
    ("fit-network", "--warmup-iters"): WHOLE,
    ("fit-network", "--budget"): [*SECONDS, "0"],
    ("fit-network", "--timeout"): [*SECONDS, "0"],
    ("fit-network", "--mode"): [*ODD, ""],
    ("fit-network", "--collectives"): ["x", LONG, "all-reduce,x"],
    ("fit-network", "--group-sizes"): ["x", "0", "1", "-2", "3", "2,x", "9" * 5000],
    ("fit-network", "--kinds"): [*NAMES, "a,,b", "a,\x1b"],
    ("fit-network", "--level"): NAMES,
    ("fit-network", "--memory"): [*ODD, "", "-1", "nan", "0", "2EiB"],
    ("fit-network", "--output"): UNWRITABLE,
    ("fit-network", "--csv"): UNWRITABLE,
    ("fit-network", "--device"): UNREADABLE,
    ("fit-network", "--from-nccl-tests"): UNREADABLE,
    ("fit-device", "--nproc-per-node"): [*WHOLE, "0"],
    ("fit-device", "--timeout"): [*SECONDS, "0"],
    ("fit-device", "--into"): UNREADABLE,
    ("fit-device", "--kind"): NAMES,
    ("fit-device", "--ops"): ["", "matmul,", "\x1b[31m", LONG],
    ("fit-device", "--output"): UNWRITABLE,
    ("fit-device", "--csv"): UNWRITABLE,
    ("codegen", ""): UNREADABLE,
    ("codegen", "--output"): UNWRITABLE,
    ("codegen", "--learning-rate"): [*ODD, "", "nan", "inf", "-1"],
    ("schedule", ""): [*UNREADABLE, "", "program.json"],
    ("schedule", "--output"): [*UNWRITABLE, "plan.json"],
    ("schedule", "--use"): [*UNREADABLE, "", "plan.json", "program.json"],
    ("schedule", "--save"): UNWRITABLE,
    ("trace", ""): UNREADABLE,
    ("trace", "--output"): UNWRITABLE,
    ("trace", "--profile"): UNREADABLE,
    ("explain", ""): UNREADABLE,
    ("explain", "--profile"): UNREADABLE,
    ("explain", "--why"): [*ODD, "", "-", "model", "*", "S0"],
    ("explain", "--why-not"): [*ODD, "", "S0,", "(S0", "Q1", "S0,S0,S0"],
    ("explain", "--budget"): SECONDS,
    ("diff", ""): [*UNREADABLE, "plan.json"],
    ("recost", ""): [*UNREADABLE, "", "program.json"],
    ("recost", "--profile"): [*UNREADABLE, "", "h10", "program.json"],
    ("recost", "--budget"): SECONDS,
    ("recost", "--memory"): [*ODD, "", "-1", "0", "nan", "2EiB"],
    ("recost", "--cluster"): [*ODD, "", "0", "2xx2", "4x8", "2*v100x1"],
    ("whatif", ""): [*UNREADABLE, "", "plan.json", "file.txt", "h100"],
    ("whatif", "--mesh"): [*ODD, "", "0", "2,", "2,-2", "2,2xx2", "2," + "9" * 400],
    ("whatif", "--memory"): [*ODD, "", "-1", "1GiB,", "1GiB,nan", "2EiB"],
    ("whatif", "--links"): [
        *ODD,
        "",
        "node",
        "=2x",
        "node=",
        "node=x",
        "node=0x",
        "nod=2x",
        "node=-1",
        "node=nan",
        "node.latency=0",
        "gpu=2x+",
        "gpu=2x,",
        "node=1e9x",
        "\x1b=2x",
    ],
    ("whatif", "--device"): [*ODD, "", "0", "-2x", "nan", "2x,", "1e9", "fast"],
    ("whatif", "--batch"): [*WHOLE, "0", "4,", "4,x", "8,-1"],
    ("whatif", "--profile"): [*UNREADABLE, "", "h10", "program.json"],
    ("whatif", "--budget"): [*SECONDS, "0"],
    ("fit", ""): [*UNREADABLE, "", "plan.json", "h100"],
    ("fit", "--within"): [*ODD, "", "0", "-1s", "nan", "inf", "1h", "1 s s"],
    ("fit", "--throughput"): [*ODD, "", "0", "-1", "nan", "inf", "9k"],
    ("fit", "--batch"): [*ODD, "", "64", "smallest"],
    ("fit", "--clusters"): [*ODD, "", "1x2,", "1x2,x", "0"],
    ("fit", "--node-size"): [*WHOLE, "0"],
    ("fit", "--most"): [*WHOLE, "0"],
    ("fit", "--memory"): [*ODD, "", "-1", "0", "nan", "2EiB"],
    ("fit", "--budget"): [*SECONDS, "0"],
    ("report", ""): [*UNREADABLE, "", "program.json", "network.json", "file.txt"],
    ("report", "--output"): [*UNWRITABLE, "plan.json", "program.json", "pipe", ".", ""],
    ("report", "--profile"): [*UNREADABLE, "", "h10", "program.json", "plan.json", "\x1b[31m"],
    ("merge", ""): [*UNREADABLE, "file.txt"],
    ("merge", "--output"): ["folder", "file.txt", "nul\0"],
    ("plan", ""): [*UNREADABLE, "", "plan.json", "file.txt", "h100"],
    ("plan", "--mesh"): [*ODD, "", "0", "-2", "2x", "2.5", "9" * 400, "2xx2", "[gpu 0]"],
    ("plan", "--profile"): [*UNREADABLE, "", "h10", "program.json"],
    ("plan", "--memory"): [*ODD, "", "-1", "0", "nan", "2EiB", "v100=1GiB"],
    ("plan", "--memory-of"): [*ODD, "", "=", "v100=", "=1GiB", "v100=1GiB", "\x1b=1GiB"],
    ("plan", "--search"): [*ODD, "", "exct", "SUMMA 2"],
    ("plan", "--objective"): [*ODD, "", "tim"],
    ("plan", "--engine"): [*ODD, "", "None", "torch"],
    ("plan", "--budget"): [*SECONDS, "0"],
    ("plan", "--evaluations"): [*SECONDS, "0", "5"],  # the base has a budget in seconds
    ("plan", "--stop-gap"): [*ODD, "", "-1", "1", "nan", "inf"],
    ("plan", "--seed"): WHOLE,
    ("plan", "--pin"): [*ODD, *PINS],
    ("plan", "--dropout"): [*ODD, "", "shared"],
    ("plan", "--recompute"): [*ODD, "", "layer"],
    ("plan", "--pipeline"): [*WHOLE, "0", "Auto"],
    ("plan", "--micro-batches"): [*WHOLE, "0"],
    ("plan", "--schedule"): [*ODD, "", "1F1B", "gpipe"],  # which the base's engine does not keep
    ("plan", "--compute-stream"): [*ODD, "", "True", "1"],
    ("plan", "--duplex"): [*ODD, "", "maybe"],
    ("plan", "--fusion"): [*ODD, "", "16", "16,0", "16,64"],
    ("plan", "--parts"): [*ODD, "", "unlike"],
    ("plan", "--output"): [*UNWRITABLE, "plan.json", "program.json", "pipe", "."],
    ("capture", ""): [
        *UNREADABLE,
        "",
        ":",
        ":build",
        *(f"{name}:build" for name in UNREADABLE[:7]),
        "missing.py:build",
        "folder:build",
        "nul\0.py:build",
        f"{LONG}.py:build",
    ],
    ("capture", "--device"): [*ODD, "", "cpu", "CUDA", "cuda:0"],
    ("capture", "--output"): [*UNWRITABLE, "plan.json", "pipe", ".", "script.py"],
    ("profiles", ""): [*UNREADABLE, *ODD, "", "h10", "H100", "h100.json", "cpu", "script.py"],
    ("sign", ""): [*UNREADABLE, "", "checkpoint"],
}
LINES = [
    [], ["x"], [LONG], ["\x1b[31m"], ["--x"], ["run"], ["run", "script.py"],
    ["run", "--nproc-per-node", "1"], ["run", "--nproc-per-node", "1", "missing.py"],
    ["run", "--nproc-per-node", "1", "-m"], ["run", "--nproc-per-node", "1", "folder"],
    ["run", "--nproc-per-node", "1", "nul\0"], ["run", "--nproc-per-node", "1", "--x", "script.py"],
    ["try"], ["try", "script.py"], ["try", "--nproc-per-node", "1"],
    ["try", "--nproc-per-node", "1", "missing.py"], ["try", "--nproc-per-node", "1", "--x", "script.py"],
    ["fit-network"], ["fit-network", "--nproc-per-node", "2", "x"], ["fit-network", "--x"],
    ["fit-device"], ["fit-device", "--nproc-per-node", "2", LONG], ["codegen"], ["trace"], ["merge"],
    ["capture"], ["capture", "script.py", "x"], ["capture", "script.py:f", "-o", "script.py", "--force"],
    ["capture", "script.py", "--x"], ["capture", "script.py", "-o"],
    ["profiles", "h100", "h200"], ["profiles", "--x"], ["plan"], ["plan", "--mesh", "2"],
    ["plan", "program.json", "-o", "new.json"], ["plan", "program.json", "--mesh", "2"],
    ["plan", "program.json", "--cluster", "x", "-o", "new.json"],
    ["plan", "program.json", "--cluster", "2*v100x2", "--memory-of", "t4=1GiB", "-o", "new.json"],
    ["plan", "program.json", "--mesh", "2", "--cluster", "2*v100x2", "-o", "new.json"],
    ["plan", "program.json", "--mesh", "2", "--pin", "*=B", "--pin", "*=S0", "-o", "new.json"],
    ["plan", "program.json", "--mesh", "2", "--msh", "2"], ["plan", "program.json", "--force"],
    ["plan", "program.json", "--mesh", "2", "-o", "program.json", "--force"],
    ["plan", "program.json", "--mesh", "2", "--pipeline", "auto", "--duplex", "yes", "-o", "new.json"],
    ["plan", "program.json", "x"], ["plan", "program.json", "--memory", "1GiB", "--memory-of", "a=1GiB"],
    ["diff"], ["diff", "plan.json", "program.json"], ["diff", "program.json", "plan.json"],
    ["diff", "plan.json", "plan.json", "x"], ["diff", "plan.json", "missing.json"],
    ["recost"], ["recost", "plan.json"], ["recost", "plan.json", "--profile"],
    ["recost", "plan.json", "x", "--profile", "h100"], ["whatif"], ["whatif", "program.json"],
    ["whatif", "program.json", "--mesh", "2"], ["whatif", "program.json", "--batch", "4"],
    ["whatif", "program.json", "--mesh", "2", "--cluster", "2*v100x2", "--memory", "1GiB",
     "--memory-of", "v100=1GiB"],
    ["whatif", "program.json", "--mesh", "2", "--batch", "4", "x"],
    ["whatif", "program.json", "--mesh", "2", "--bach", "4"], ["fit"], ["fit", "program.json"],
    ["fit", "program.json", "--within", "1s", "--mesh", "2"],
    ["fit", "program.json", "--within", "1s", "--cluster", "2"],
    ["fit", "program.json", "--batch", "largest"], ["fit", "program.json", "--within", "1s", "x"],
    ["explain"], ["explain", "plan.json", "x"], ["explain", "plan.json", "--why", "model"],
    ["report"], ["report", "plan.json", "x"], ["report", "plan.json", "--x"],
    ["report", "plan.json", "-o"], ["report", "plan.json", "-o", "plan.json", "--force"],
    ["report", "plan.json", "-o", "file.txt"],
    ["report", "plan.json", "--profile", "network.json", "-o", "network.json", "--force"],
    ["report", "plan.json", "-o", "folder", "--force"],
    ["report", "plan.json", "-o", "new.html", "--force=1"],
    ["sign"], ["codegen", "plan.json", "x"], ["merge", "checkpoint", "x"],
]  # fmt: skip


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Work in a folder with files of all kinds; give their names."""
    import autoddl

    monkeypatch.chdir(tmp_path)
    program = mlp(8, (16, 32, 8))
    program.save("program.json")
    plan = autoddl.optimize(program, mesh="2", profile=cluster(), budget=0.3)
    plan.save("plan.json")
    cluster().save("network.json")
    Path("cut.json").write_bytes(Path("plan.json").read_bytes()[:100])
    Path("script.py").write_text("raise SystemExit('a rank was started')\n")
    Path("file.txt").write_text("a file\n")
    Path("noise").write_bytes(bytes(range(256)))
    Path("empty").touch()
    for folder in ("folder", "checkpoint"):
        Path(folder).mkdir()
    os.mkfifo("pipe")
    yield _names()
    monkeypatch.undo()


def _names() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError("it hangs")


def _refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.process_time()
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(HANGS_S)
    try:
        code = app.main(words)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = capsys.readouterr().err.splitlines()
    short = [word[:50] for word in words]
    assert code == 2, (short, code, said)
    assert len(said) == 1, (short, said)
    assert said[0].isprintable() and len(said[0]) <= LONGEST, (short, said)
    assert time.process_time() - begin < LIMIT_S, short


@pytest.mark.parametrize(("command", "option"), VALUES)
def test_a_wrong_value(
    command: str, option: str, workplace: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for value in VALUES[command, option]:
        words = [option, value] if option else [value]
        base = BASES[command]
        if not option:
            base = []
        elif option in base:
            base = [w for i, w in enumerate(base) if w != option and base[i - 1] != option]
        _refused([command, *words, *base], capsys)
        assert _names() == workplace, (value[:50], _names() ^ workplace)


def test_other_lines(workplace: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    for words in LINES:
        _refused(words, capsys)
    assert _names() == workplace


def test_there_are_enough_of_them() -> None:
    assert {command for command, _ in VALUES} == set(COMMANDS)
    assert sum(map(len, VALUES.values())) + len(LINES) >= 200
