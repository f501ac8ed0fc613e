"""Every command × help, missing file, bad value, unknown option: exit code, one line on stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autoddl
from autoddl.cli.app import COMMANDS, main

# Of each command a line that asks for a missing file, and one with a bad value.
MISSING = {
    "capture": "missing.py:build",
    "plan": "missing.json --mesh 2",
    "profiles": "missing.json",
    "diff": "missing.json plan.json",
    "recost": "missing.json --profile h100",
    "whatif": "missing.json --mesh 2 --batch 4",
    "fit": "missing.json --within 1s",
    "codegen": "missing.json",
    "run": "--nproc-per-node 2 missing.py",
    "try": "--nproc-per-node 2 missing.py",
    "fit-network": "--nproc-per-node 2 --device missing.json",
    "fit-device": "--nproc-per-node 2 --into missing.json",
    "explain": "missing.json",
    "report": "missing.json",
    "merge": "missing",
    "sign": "missing.json",
    "schedule": "missing.json",
    "trace": "missing.json",
}
BAD = {
    "capture": "train.py another.py",
    "plan": "program.json --mesh 2 --seed one",
    "profiles": "h100 h200",
    "diff": "plan.json",
    "recost": "plan.json --profile h100 --budget much",
    "whatif": "program.json --mesh 2 --batch many",
    "fit": "program.json --within 1s --most few",
    "codegen": "plan.json --learning-rate fast",
    "run": "--nproc-per-node two script.py",
    "try": "--nproc-per-node 2 --top 0 script.py",
    "fit-network": "--nproc-per-node two",
    "fit-device": "--nproc-per-node 0",
    "explain": "plan.json another.json",
    "report": "plan.json another.json",
    "merge": "folder another",
    "sign": "--learning-rate 3 plan.json",
    "schedule": "plan.json another.json",
    "trace": "plan.json another.json",
}


@pytest.mark.parametrize("rate", ["-1", "nan", "inf", "1e999"])
def test_a_learning_rate_is_a_number_from_0_on(
    rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codegen", "plan.json", "--learning-rate", rate]) == 2
    assert "Invalid value for '--learning-rate': " in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == main([name.replace("-", "_"), "-h"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: python -m autoddl {name} ") and err == ""


LINES = {
    **{f"{name} {MISSING[name]}": "missing" for name in COMMANDS},
    **{f"{name} {BAD[name]}": "" for name in COMMANDS},
    **{f"{name} --nproc-per-node 2 --bogus": "No such option" for name in COMMANDS},
    "": "Missing command",
    "plot": "No such command 'plot'",
    "--bogus": "No such option '--bogus'",
}


@pytest.mark.parametrize("line", LINES)
def test_bad_input_is_one_line_and_2(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.endswith("\n")
    name = line.partition(" ")[0]
    assert err.startswith(f"autoddl {name}: " if name in COMMANDS else "autoddl: ")
    assert LINES[line] in err
    assert list(tmp_path.iterdir()) == []


def test_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and does in out for name, (_, does) in COMMANDS.items())


@pytest.mark.parametrize("module", ["autoddl", "autoddl.fit_network", "autoddl.fit_device"])
def test_help_loads_neither_the_engine_nor_the_planner(module: str) -> None:
    """A module of measuring is a command, too."""
    code = (
        f"import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end: code = end.code\n"
        "print(code, *sorted({'oneflow', 'numba', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(autoddl.__file__).parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    last = done.stdout.splitlines()[-1].split()
    assert done.stdout.startswith("Usage: python -m autoddl") and last[0] == "0"
    assert "oneflow" not in last and (module != "autoddl" or last == ["0"])
