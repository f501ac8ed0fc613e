"""`python -m autoddl`: the table of commands; bad input is one line on stderr and exit code 2."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from autoddl.calls import InternalError, reported
from autoddl.errors import MOST_SHOWN, AutoDDLError, InfeasibleError, printable, shortened
from autoddl.launch.job import LaunchError
from autoddl.terminal import status_line

PROG = "python -m autoddl"
BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130
COMMANDS: Mapping[str, tuple[str, str]] = {
    "capture": ("plans.capture_command:command", "write the program of a script, to plan it elsewhere"),
    "plan": ("plans.plan_command:command", "plan a saved program for a mesh or a cluster"),
    "explain": ("file_commands:explain", "say what a plan does and why, in words and seconds"),
    "diff": ("plans.diff_command:command", "say what differs between two plans of one program"),
    "recost": ("plans.recost_command:command", "price a plan with another profile, and plan again"),
    "whatif": ("plans.whatif_command:command", "plan with other links, memory, meshes or batches"),
    "fit": ("plans.fit_command:command", "find the smallest cluster or the largest batch"),
    "report": ("plans.report_command:command", "write a plan as one HTML page"),
    "codegen": ("file_commands:codegen", "write a saved plan as a Python script that needs only OneFlow"),
    "schedule": ("plans.schedule_command:command", "write what each rank of a pipeline does, in order"),
    "trace": ("file_commands:trace", "write the predicted timeline of a plan for Perfetto"),
    "run": ("run_command:command", "start the ranks of a training script on this node"),
    "try": ("try_command:command", "run the best plans of a training script and keep the fastest"),
    "profiles": ("measure.profiles_command:command", "list the bundled profiles, or show one"),
    "fit-network": ("measure.fit_network_command:command", "measure links and devices of this cluster"),
    "fit-device": ("measure.fit_device_command:command", "time the ops of this machine's devices"),
    "merge": ("file_commands:merge", "join a checkpoint to a state dict that OneFlow loads"),
    "sign": ("file_commands:sign", "check and sign files that were edited on purpose"),
}  # fmt: skip
"""Of each command its module in autoddl.cli with the name it has there, and what it does."""


class _Commands(click.Group):
    """Load a command when it is called, so that none waits for what another imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, own = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(f"autoddl.cli.{module}"), own)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, does) for name, (_, does) in COMMANDS.items()])


_GROUP = _Commands(
    help="Plan and run distributed training of OneFlow graphs.",
    no_args_is_help=False,
    epilog=f"`{PROG} COMMAND --help` tells the options of a command.",
    context_settings={
        # as torchrun: --nproc_per_node
        "token_normalize_func": lambda word: word.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, see `run`."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0].replace("_", "-") if words else ""
    prefix = f"autoddl {name}" if name in COMMANDS else "autoddl"
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable(f"{prefix}: %(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], force=True)
    return run(_GROUP, words, prog=PROG, prefix=prefix)


def run(command: click.Command, words: Sequence[str], *, prog: str, prefix: str) -> int:
    """Run a command, which `prog` calls, and return its exit code; `prefix` is what errors begin with.

    Exit codes: what the command returns, 0 for None; 2 for bad input, a full disk and the like; 70 for a
    mistake of autoddl (EX_SOFTWARE of sysexits.h); 124 after a time limit; 130 after Ctrl-C; else that
    of the rank that failed first (128 + signal if a signal killed it).
    """
    try:
        with reported(prefix), _told_warnings(prefix):
            return _called(command, words, prog, prefix)
    except InternalError as error:
        print(error, file=sys.stderr, flush=True)
        return INTERNAL


def _called(command: click.Command, words: Sequence[str], prog: str, prefix: str) -> int:
    try:
        return command.main(list(words), prog_name=prog, standalone_mode=False) or 0
    except InternalError:
        raise
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = prog if context is None else context.command_path
        message = shortened(error.format_message().replace("\n", " ").rstrip("."), MOST_SHOWN)
        tell(prefix, f"{message}; see `{path} --help`")
    except LaunchError as error:
        tell(prefix, str(error))
        sys.stderr.writelines(f"{line}\n" for line in error.tail)  # as the rank wrote it
        tell(prefix, f"logs of all ranks: {error.result.log_dir}")
        return error.result.exit_code or 1
    except InfeasibleError as error:
        tell(prefix, error.line)
        if error.diagnosis is not None:
            lines = error.diagnosis.lines(terminal=True)
            sys.stderr.writelines(f"{printable(line)}\n" for line in lines)
    except AutoDDLError as error:
        tell(prefix, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        tell(prefix, shortened(f"{where}{error.strerror}", MOST_SHOWN))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return BAD_INPUT


@contextmanager
def _told_warnings(prefix: str) -> Iterator[None]:
    """Write the warnings of autoddl as lines, with the names of files in them; others as ever."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category is UserWarning:
                tell(prefix, f"warning: {message}")
            else:
                others(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]  # called with all words by place
        yield


class _Printable(logging.Formatter):
    """Names in a message come from files, too."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def tell(prefix: str, text: str) -> None:
    """Write a line to stderr."""
    status_line.write(f"{prefix}: {printable(text)}")


def say(*lines: str) -> None:
    """Write lines of a result to stdout."""
    print(*map(printable, lines), sep="\n", flush=True)
