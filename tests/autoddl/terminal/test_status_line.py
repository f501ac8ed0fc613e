"""What takes long says so in a line that goes away, on a terminal and nowhere else."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

import autoddl
from autoddl.cli import app
from autoddl.terminal import status_line
from autoddl.terminal.status_line import working
from tests.support.clusters import cluster
from tests.support.programs import mlp
from tests.support.terminals import screen, terminal

OPTIONS = {"mesh": "2", "profile": cluster(), "budget": 0.5}


class AtOnce:
    """A timer that does not wait."""

    def __init__(self, _: float, function: Callable[[], None]) -> None:
        self.start = function

    def cancel(self) -> None:
        """It is too late."""

    def join(self) -> None:
        """It has ended."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_line, "Timer", AtOnce)


def test_it_shows_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as ended:
        with working("planning") as word:
            word("best so far 1.00 s")
            app.tell("autoddl", "a line that stays")
            with working("trying \x1b[31m[bold]x") as inner:
                inner("y")
                time.sleep(0.3)  # it is written ten times a second
        written = ended()
    assert "planning, best so far 1.00 s" in written
    assert r"best so far 1.00 s, trying \x1b[31m[bold]x, y" in written
    assert screen(written) == ["autoddl: a line that stays"]


def test_what_ends_soon_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_line, "Timer", Timer)
    with terminal(monkeypatch) as ended:
        with working("planning"), working("inside"):
            pass
        written = ended()
    assert screen(written) == [] and "planning" not in written


def test_errors_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as ended:
        with pytest.raises(ValueError, match="so"), working("planning"), working("inside"):
            time.sleep(0.3)
            raise ValueError("so")
        with working("after"):
            time.sleep(0.3)
        written = ended()
    assert "planning, inside" in written and " after " in written
    assert screen(written) == []


class DumbTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term"), [(io.StringIO, "xterm"), (DumbTerminal, "dumb"), (DumbTerminal, "unknown")]
)
def test_nothing_is_written_elsewhere(
    stream: type[io.StringIO], term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = stream()
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout", out := io.StringIO())
    with working("planning") as word:
        word("on")
    autoddl.optimize(mlp(8, (16, 8)), **OPTIONS)
    assert error.getvalue() == out.getvalue() == ""


def test_a_call_of_optimize_shows_it_unless_it_tells_its_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for more, shows in (({}, True), ({"progress": lambda *_: None}, False)):
        with terminal(monkeypatch) as ended:
            plan = autoddl.optimize(mlp(8, (16, 32, 8)), **OPTIONS, **more)
            written = ended()
        assert ("planning" in written) == shows and screen(written) == []
        assert plan.devices == 2


SHOWN = {
    "planning": "plan mlp.json --mesh 2 --budget 0.3 --force -o new.json",
    "explaining": "explain plan.json --profile net.json",
    "planning again": "recost plan.json --profile net.json --budget 0.3",
    "planning, ": "whatif mlp.json --mesh 2 --profile cpu-loopback --budget 0.3 --batch 4",
    "simulating the step": "trace plan.json --profile net.json",
}


def test_commands_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = mlp(8, (16, 8))
    program.save("mlp.json")
    cluster().save("net.json")
    autoddl.optimize(program, **OPTIONS).save("plan.json")
    for said, words in SHOWN.items():
        with terminal(monkeypatch) as ended:
            assert app.main(words.split()) == 0
            written = ended()
        assert said in written, words
        assert [line for line in screen(written) if "compiling" not in line] == [], words
        assert app.main(words.split()) == 0
        assert capsys.readouterr().err == "", words
