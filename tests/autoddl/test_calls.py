"""Mistakes of autoddl are one line, with the trace in a file."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import autoddl
from autoddl.calls import InternalError, reported
from autoddl.cli import app
from autoddl.errors import AutoDDLError
from tests.support.clusters import cluster
from tests.support.programs import mlp


def _trace(line: str) -> str:
    """Return what is in the file that a line names, and remove it."""
    (name,) = re.findall(r"\S+autoddl-trace-\S+\.txt", line)
    text = Path(name).read_text()
    Path(name).unlink()
    return text


def test_a_mistake_is_one_line_with_its_trace_in_a_file() -> None:
    with pytest.raises(InternalError) as caught, reported("here"):
        raise KeyError("two\nlines \x1b[31m" + "x" * 5000)
    line = str(caught.value)
    assert line.startswith("here: internal error (KeyError: ") and "a mistake of autoddl" in line
    assert line.isprintable() and len(line) <= 400
    trace = _trace(line)
    assert "test_calls.py" in trace and "numpy" in trace and "Python 3" in trace
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_a_callback_raises_comes_out_as_it_is() -> None:
    def progress(elapsed_s: float, best_s: float) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match=r"^mine$"):
        autoddl.optimize(mlp(), mesh="2x2", profile=cluster(), progress=progress)


def test_errors_of_users_stay_what_they_are() -> None:
    for kind in (AutoDDLError, MemoryError, KeyboardInterrupt):
        with pytest.raises(kind) as caught, reported("here"):
            raise kind("as it was")
        assert not isinstance(caught.value, InternalError)


def test_without_room_for_the_trace_there_is_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.NamedTemporaryFile", _full)
    with pytest.raises(InternalError, match=r"please report it$"), reported("here"):
        raise KeyError("w")


def _full(*args: object, **kwargs: object) -> None:
    raise OSError(28, "No space left on device")


def test_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoddl.planner.choose.best", lambda request, _: request.nothing)
    with pytest.raises(InternalError, match="optimize: internal error") as caught:
        autoddl.optimize(mlp(8, (16, 32, 8)), mesh="2", profile=cluster())
    assert "request.nothing" in _trace(str(caught.value))


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def broken() -> None:
        raise TypeError("no such thing")

    assert app.run(broken, [], prog="x", prefix="autoddl x") == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("autoddl x: internal error (TypeError: no such thing)")
    assert "no such thing" in _trace(line)
