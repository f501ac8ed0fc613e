"""`python -m autoddl capture`: write the program of a training script, of which no step is run."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any, NoReturn

import click

import autoddl
from autoddl import store
from autoddl.cli.app import say
from autoddl.cli.options import FORCE, check_new, example, option
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.engine.interface import Engine
from autoddl.errors import AutoDDLError, near, one_line, shown
from autoddl.launch.output import is_noise
from autoddl.sbp.program import Program
from autoddl.terminal.status_line import working
from autoddl.units import bytes_text

STDERR = 2
ROOT = str(Path(autoddl.__file__).parents[1])
CHILD = ("-m", "autoddl", "capture", "--here", "--device", "cuda", "--force")
Call = tuple[Any, tuple[Any, ...], Mapping[str, Any]]
"""A graph and what it is called with."""


@click.command("capture", epilog=example("capture train.py:build -o program.json"))
@click.argument("script", metavar="SCRIPT[:FUNCTION]")
@option("-o --output", "the program", Path, "FILE", default="program.json", show_default=True)
@option("--device", "trace as on such devices, without any; else where the script puts the model",
        click.Choice(["cuda"]))  # fmt: skip
@FORCE
@click.option("--here", is_flag=True, hidden=True)  # in a process that has been prepared for that
def command(script: str, output: Path, device: str | None, force: bool, here: bool) -> int:
    """Write the program of a training step, which `plan` reads on any machine.

    FUNCTION of SCRIPT, a file or a module, returns (graph, inputs): an nn.Graph with its optimizer, and
    a tuple of what it is called with. Without FUNCTION the script is run up to its call of
    autoddl.optimize, and that is what is written. Parameters take no memory, and nothing is computed.
    """
    name, _, function = script.partition(":")
    check_new(output, force=force, beside=name)
    read = _script(name, is_file=not function or name.endswith(".py") or store.exists(name))
    engine = engines.load(ONEFLOW)
    if not engine.installed():
        raise AutoDDLError(
            "OneFlow is not installed, which traces graphs; pip install 'autoddl[oneflow]'"
        )
    if device is not None and not here:
        with working("tracing"):
            return _prepared(engine, script, output)
    file = output.absolute()  # wherever the script goes
    with working("tracing"):
        with _without_noise():
            abstract_parameters = engine.abstract_parameters  # imports OneFlow
        as_cuda = device is not None
        with abstract_parameters(), engine.made_on_cpu() if as_cuda else nullcontext():
            graph, inputs, words = _made(read, function) if function else _reached(read)
        with _without_complaints(), engine.traced_as_cuda() if as_cuda else nullcontext():
            program = engine.capture(graph, *inputs, **words)
    program.save(file)
    say(f"wrote {output}: {_told(program)}")
    return 0


def _prepared(engine: Engine, script: str, output: Path) -> int:
    """Run the command in a process that traces as on CUDA devices, and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="autoddl-trace-") as folder:
        path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
        env = {**os.environ, **engine.cuda_environment(Path(folder)), "PYTHONPATH": path}
        command = [sys.executable, *CHILD, "-o", str(output), "--", script]
        done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")
    if done.returncode < 0:
        raise AutoDDLError(
            f"script {store.told(script)}: OneFlow ended its process (signal {-done.returncode}); with "
            "--device nothing can be computed on CUDA devices: make model and inputs on the CPU"
        )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


@dataclass(frozen=True)
class _Script:
    """A file and what it does, or a module, of which that is not known."""

    name: str
    code: CodeType | None

    def run(self, run_name: str) -> Mapping[str, Any]:
        """Run it, a file under this name, and return what it has defined."""
        if self.code is None:
            return vars(import_module(self.name))
        module = ModuleType(run_name)
        module.__file__ = self.name
        sys.modules[run_name] = module
        exec(self.code, module.__dict__)
        return module.__dict__


def _script(name: str, *, is_file: bool) -> _Script:
    """Return a script; raise AutoDDLError where there is no such file, or it is no Python."""
    if not is_file:
        return _Script(name, None)
    where = f"script {store.told(name)}"
    text = store.content(name, where, "name a Python file, or MODULE:FUNCTION")
    try:
        return _Script(name, compile(text, name, "exec", dont_inherit=True))
    except (SyntaxError, ValueError) as error:  # ValueError: NUL in the text
        raise AutoDDLError(f"{where}: no Python: {one_line(str(error))}") from None


def _made(script: _Script, function: str) -> Call:
    """Return the graph and inputs that a function makes.

    Raises:
        AutoDDLError: there is no such function, it fails, or returns something else.
    """
    where = f"{store.told(script.name)}:{one_line(function)}"
    with _running(script):
        defined = script.run("__capture__")
        if not inspect.isroutine(defined.get(function)):
            known = [name for name, value in defined.items() if inspect.isfunction(value)]
            raise AutoDDLError(f"{where}: no such function{near(function, known)}")
        found = defined[function]()
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], tuple | list)):
        raise AutoDDLError(
            f"{where}: got {shown(type(found).__name__)}; return (graph, inputs), with a tuple of what "
            "the graph is called with"
        )
    return found[0], tuple(found[1]), {}


def _reached(script: _Script) -> Call:
    """Return what a script gives to `autoddl.optimize`; raise AutoDDLError where it never does."""
    optimize = autoddl.optimize
    autoddl.optimize = _reach
    try:
        with _running(script):
            script.run("__main__")
    except _Reached as reached:
        return reached.call
    finally:
        autoddl.optimize = optimize
    name = store.told(script.name)
    raise AutoDDLError(
        f"script {name}: it does not call autoddl.optimize; name a function of it that returns "
        f"(graph, inputs), {name}:FUNCTION"
    )


class _Reached(BaseException):
    """End a script where it plans; no `except Exception` of its own stops that."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


def _reach(*args: Any, **words: Any) -> NoReturn:
    from autoddl.api import optimize

    given = inspect.signature(optimize).bind(*args, **words).arguments
    raise _Reached((given["graph"], given.get("inputs", ()), given.get("kwargs", {})))


@contextmanager
def _without_noise() -> Iterator[None]:
    """Leave out what OneFlow writes when it is loaded, and its log of what a trace need not have."""
    os.environ.setdefault("GLOG_minloglevel", "3")
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        kept = os.dup(STDERR)
        os.dup2(file.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(kept, STDERR)
            os.close(kept)
            file.seek(0)
            sys.stderr.writelines(line for line in file if not is_noise(line))


@contextmanager
def _without_complaints() -> Iterator[None]:
    """Leave out what nn.Graph prints of a failure, which the error says again."""
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            yield
    finally:
        lines = printed.getvalue().splitlines(keepends=True)
        sys.stderr.writelines(line for line in lines if not line.startswith("[ERROR]("))


@contextmanager
def _running(script: _Script) -> Iterator[None]:
    """Give a script its words and its folder; turn its failure into one line that says where."""
    words, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = [script.name]
    if script.code is not None:
        sys.path.insert(0, str(Path(script.name).resolve().parent))
    try:
        yield
    except AutoDDLError:
        raise
    except (Exception, SystemExit) as error:
        name, frames = script.name, extract_tb(error.__traceback__)
        lines = [f", line {each.lineno}" for each in frames if each.filename == name]
        told = f"{type(error).__name__}: {one_line(str(error))}"
        raise AutoDDLError(f"script {store.told(name)}{''.join(lines[-1:])}: {told}") from error
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = words, path, main


def _told(program: Program) -> str:
    sizes = [program.tensor[each.tensor].size_bytes for each in program.parameters]
    return (
        f"{len(program.ops)} ops, {len(sizes)} parameters of {bytes_text(sum(sizes))}, "
        f"for {program.device} devices"
    )
