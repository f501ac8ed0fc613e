"""`python -m autoddl plan`: what `optimize` does, from a terminal."""

from __future__ import annotations

import inspect
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import autoddl
from autoddl.cli import app
from autoddl.cli.plans import plan_command
from autoddl.perfmodel import profile as profiles
from autoddl.units import seconds_text
from tests.support.clusters import cluster
from tests.support.programs import mlp

NOT_OF_PROGRAMS = {"trials", "progress"}
SAID_OTHERWISE = {"evaluations": "budget", "memory_of": "memory"}
OWN = {"program", "output", "force"}
# What is asked for in words, and in a call.
GIVEN: dict[str, dict[str, Any]] = {
    "": {},
    "--mesh 2x2": {"mesh": "2x2"},
    "--cluster 3*v100x4+1*t4x4": {"cluster": "3*v100x4+1*t4x4"},
    "--profile h100": {"profile": "h100"},
    "--memory 16GiB": {"memory": "16GiB"},
    "--memory-of v100=16GiB --memory-of t4=8GiB": {"memory": {"v100": "16GiB", "t4": "8GiB"}},
    "--search Megatron": {"search": "Megatron"},
    "--objective sum": {"objective": "sum"},
    "--engine none": {"engine": None},
    "--engine oneflow": {"engine": "oneflow"},
    "--budget 2.5": {"budget": 2.5},
    "--evaluations 2e5": {"budget": autoddl.Budget(evaluations=200_000)},
    "--stop-gap 0.01": {"stop_gap": 0.01},
    "--seed 7": {"seed": 7},
    "--pin *.a=B,S0 --pin b=c=S1": {"pin": {"*.a": "B,S0", "b=c": "S1"}},
    "--strict": {"strict": True},
    "--allow-local-batchnorm": {"allow_local_batchnorm": True},
    "--dropout sharded": {"dropout": "sharded"},
    "--recompute none": {"recompute": "none"},
    "--strides no": {"strides": False},
    "--pipeline 2": {"pipeline": 2},
    "--pipeline auto": {"pipeline": "auto"},
    "--micro-batches 4": {"micro_batches": 4},
    "--schedule searched": {"schedule": "searched"},
    "--compute-stream no": {"compute_stream": False},
    "--duplex yes": {"duplex": True},
    "--duplex auto": {"duplex": "auto"},
    "--fusion 16,64": {"fusion": "16,64"},
    "--shares no": {"shares": False},
    "--parts any": {"parts": "any"},
}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mlp(8, (16, 32, 8)).save("mlp.json")


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command prints that plans."""
    assert app.main(["plan", "mlp.json", "--mesh", "2", "--budget", "1", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that refuses a command."""
    assert app.main(["plan", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err[:-1].isprintable()
    return err


def test_options_are_those_of_optimize() -> None:
    of_optimize = {
        name
        for name, each in inspect.signature(autoddl.optimize).parameters.items()
        if each.kind is each.KEYWORD_ONLY
    }
    of_command = {str(each.name) for each in plan_command.command.params} - OWN
    assert of_command - SAID_OTHERWISE.keys() == of_optimize - NOT_OF_PROGRAMS
    tried = {word for line in GIVEN for word in line.split() if word.startswith("--")}
    assert tried == {f"--{name.replace('_', '-')}" for name in of_command}


@pytest.mark.parametrize("line", GIVEN)
def test_what_is_given_reaches_optimize_and_no_more(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, seen = autoddl.optimize(mlp(8, (16, 8)), mesh="2", profile=cluster(), budget=0.2), {}

    def optimize(program: str, **options: Any) -> autoddl.Plan:
        seen.update(options)
        return plan

    defaults = inspect.signature(autoddl.optimize).parameters
    monkeypatch.setattr(autoddl, "optimize", optimize)
    assert app.main(["plan", "mlp.json", *line.split()]) == 0
    assert callable(seen.pop("progress"))
    expected = {"engine": defaults["engine"].default, "strict": False, **GIVEN[line]}
    assert seen == {"allow_local_batchnorm": False, **expected}
    assert all(type(seen[name]) is type(value) for name, value in expected.items())


def test_the_plan_is_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(capsys, "-o", "new.json")
    plan = autoddl.load("new.json")
    assert out == f"{plan}\nwrote new.json\n" and "plan on mesh 2 [gpu 2]" in out
    again = autoddl.optimize("mlp.json", mesh="2", budget=1)
    assert plan.estimate == again.estimate and plan.layout == again.layout


def test_a_file_that_is_there_needs_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.json").write_text("mine")
    line = refused(capsys, "mlp.json", "--mesh", "2")
    assert "output file plan.json: exists; add --force" in line
    assert Path("plan.json").read_text() == "mine"
    planned(capsys, "--force")
    assert autoddl.load("plan.json").devices == 2


def test_the_program_is_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("mlp.json").read_bytes()
    Path("link.json").symlink_to("mlp.json")
    for name in ("mlp.json", "./mlp.json", "link.json"):
        line = refused(capsys, "mlp.json", "--mesh", "2", "-o", name, "--force")
        assert "is what is read" in line and Path("mlp.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--profile", "h10"), "; did you mean h100?"),
        (("--profile", "cpu-loopbak"), "; did you mean cpu-loopback?"),
        (("--budgt", "3"), "'--budget'"),
        (("--micro-batch", "3"), "'--micro-batches'"),
        (("-o", "."), "output file .: Is a directory"),
        (("-o", "no/such/folder"), "No such file or directory"),
        (("--budget", "1", "--evaluations", "1"), "--budget and --evaluations: both are given"),
        (("--memory", "1MB", "--memory-of", "a=1MB"), "--memory and --memory-of: both are given"),
        (("--pin", "a=B", "--pin", "a=S0"), "--pin 'a': given twice"),
        (("--pin", "a"), "'a' is no pair such as NAME=STATE"),
        (("--memory", "1KB", "--budget", "0.5"), "memory"),
        (("--strides", "yes"), "--strides: got True with OneFlow"),
    ],
)
def test_wrong_words(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(Path().iterdir())
    assert expected in refused(capsys, "mlp.json", "--mesh", "2", *words)
    assert set(Path().iterdir()) == before


# --- what names in files may do -----------------------------------------------------------------

HOSTILE = ["\x1b[31mred", "a\rb", "a\nb", "\x07bell", "\u202egpj", "\x9b2J", "\x00", "\u2028line"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_programs_and_profiles(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused, in a line that is printable itself."""
    program, written = Path("mlp.json").read_text(), json.dumps(name)[1:-1]
    Path("odd.json").write_text(program.replace("model.fc1", f"model.{written}"))
    line = refused(capsys, "odd.json", "--mesh", "2")
    assert "odd.json: " in line and "; allowed is text without line ends and controls" in line
    profile = profiles.load("cpu-loopback").encoded().decode()
    Path("odd.json").write_text(profile.replace('"name": "', f'"name": "{written}', 1))
    line = refused(capsys, "mlp.json", "--mesh", "2", "--profile", "odd.json")
    assert "odd.json: " in line and "; allowed is text without line ends and controls" in line


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\x00" not in name])
def test_names_of_files(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That of a profile stands in a warning, that of the plan in what is printed."""
    profiles.load("cpu-loopback").save(name)
    Path("mlp.json").rename(f"{name}.program")
    words = [f"{name}.program", "--mesh", "2", "--budget", "1", "--profile", name, "-o", f"{name}2"]
    assert app.main(["plan", *words]) == 0
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in [*out.split("\n"), *err.split("\n")])
    assert err.startswith("autoddl plan: warning: profile ") and err.count("\n") == 1
    assert Path(f"{name}2").exists()


def test_markup_in_names_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mlp.json").write_text(Path("mlp.json").read_text().replace("model.fc1", "[bold]m[/bold]"))
    assert app.main(["sign", "mlp.json"]) == 0
    capsys.readouterr()
    out = planned(capsys)
    assert "│ [bold]m[/bold] " in out and "\x1b" not in out


# --- progress ----------------------------------------------------------------------------------


def test_progress_has_the_best_step_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []
    monkeypatch.setattr(plan_command, "working", lambda text: nullcontext(words.append))
    assert app.main(["plan", "mlp.json", "--mesh", "2", "--budget", "1"]) == 0
    best_s = autoddl.load("plan.json").estimate.step_s
    assert words[-1] == f"best so far {seconds_text(best_s)}"


# --- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--pipeline 2 --search Megatron", "search: got 'Megatron' with --pipeline 2; "),
        (
            "--recompute layers --micro-batches 2",
            "recompute: got 'layers' with --micro-batches 2; ",
        ),
        ("--duplex yes --objective sum", "got True with --objective sum; "),
        ("--duplex yes --objective sum", "allowed is --duplex no"),
        ("--mesh 2 --compute-stream yes", "--compute-stream: got True for a program on 'cpu'"),
    ],
)
def test_errors_speak_as_the_command_line_does(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = given.split() if "--mesh" in given else ["--mesh", "2", *given.split()]
    assert app.main(["plan", "mlp.json", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1, err
