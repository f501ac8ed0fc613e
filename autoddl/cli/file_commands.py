"""Commands on files that autoddl has written: plans, checkpoints, profiles and programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from autoddl.cli.app import say
from autoddl.cli.options import NOT_NEGATIVE, RATE, example, option, with_options
from autoddl.errors import AutoDDLError
from autoddl.terminal.status_line import working


@click.command("codegen", epilog=example("codegen plan.json -o train_parallel.py"))
@click.argument("plan", metavar="PLAN")
@click.option("-o", "--output", default="train_parallel.py", show_default=True, help="the script")
@click.option("--learning-rate", type=RATE, help="default of the script's own --learning-rate")
def codegen(plan: str, output: str, learning_rate: float | None) -> None:
    """Write PLAN, a file of Plan.save, as a standalone script that needs only OneFlow and NumPy."""
    from autoddl import load

    with working("writing"):
        load(plan).codegen(output, learning_rate=learning_rate)


@click.command("merge", epilog=example("merge checkpoint -o state.of"))
@click.argument("folder", metavar="FOLDER", type=Path)
@click.option(
    "-o", "--output", default="state.of", show_default=True, help="a folder, which flow.load reads"
)
def merge(folder: Path, output: str) -> None:
    """Join the checkpoint in FOLDER, which step.save wrote, to one state dict.

    A graph on one device goes on from it, without autoddl: graph.load_state_dict(flow.load(FILE)).
    """
    from autoddl.checkpoint import sharded_files
    from autoddl.engine import engines
    from autoddl.engine.engines import ONEFLOW

    with working("joining"):
        index = sharded_files.read_index(folder)
        arrays = {name: sharded_files.read(folder, index, name) for name in index.tensors}
        engines.load(ONEFLOW).write_state(arrays, index.facts.blocks, index.facts.graph, output)
    say(f"wrote {output}: {len(arrays)} tensors after {index.facts.steps} steps")


@click.command("sign", epilog=example("sign network.json"))
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
def sign(files: tuple[str, ...]) -> None:
    """Check each FILE that was edited on purpose, and sign it.

    These are plans, programs, profiles and indices of checkpoints. They carry a digest of their content,
    and are refused where it is another one. A file that is wrong in itself is refused here, too, and
    stays as it is.
    """
    from autoddl import json_files, store

    readers = _readers()
    for file in files:
        text = store.content(file, f"file {store.told(file)}", "name a file of autoddl")
        kind = _kind(text)
        if kind not in readers:
            raise AutoDDLError(
                f"file {store.told(file)}: none of {', '.join(readers)}; name one of these"
            )
        readers[kind](text, f"{kind} file {store.told(file)}")
        json_files.write(file, text, indent=1 if b"\n " in text else -1)
        say(f"signed {kind} {store.told(file)}")


def _readers() -> Mapping[str, Callable[[bytes, str], Any]]:
    """Return what reads, and so checks, each kind of file."""
    from functools import partial

    from autoddl.checkpoint import sharded_files
    from autoddl.engine import engines
    from autoddl.perfmodel import profile
    from autoddl.plan import codec
    from autoddl.sbp.program import Program

    return {
        "plan": partial(codec.decode, engine_of=engines.model),
        "program": Program.decode,
        "profile": profile.from_json,
        "checkpoint": sharded_files.decode_index,
    }


def _kind(text: bytes) -> str:
    import msgspec

    try:
        data = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ""
    return str(data.get("format", "")).removeprefix("autoddl.") if isinstance(data, dict) else ""


@click.command("trace", epilog=example("trace plan.json -o trace.json"))
@click.argument("plan", metavar="PLAN")
@click.option("-o", "--output", type=Path, default="trace.json", metavar="FILE", show_default=True)
@click.option(
    "--profile", metavar="FILE", help="of a plan without stages, if it is not a bundled one"
)
def trace(plan: str, output: Path, profile: str | None) -> None:
    """Write the predicted timeline of PLAN, a file of Plan.save, for ui.perfetto.dev."""
    from autoddl import load
    from autoddl.report.perfetto import write

    with working("simulating the step"):
        timeline = write(load(plan), output, profile=profile)
    say(f"wrote {output}: a step of {timeline.step_s * 1e3:.3g} ms; open it in ui.perfetto.dev")


_OPTIONS = with_options(
    option("--why", "why a module, op or tensor is as it is; what others would cost", None, "NAME"),
    option("--why-not", "with --why: what that state would cost, or why it can't be", None, "STATE"),
    option("--budget", "of the search around each other choice (2); 0: none", NOT_NEGATIVE, "SECONDS",
           default=2.0),
    option("--profile", "prices the plan again, if its own is not a bundled one", None, "FILE"),
)  # fmt: skip


@click.command("explain", epilog=example("explain plan.json --why model.blocks.0.fc1 --why-not S0"))
@click.argument("plan", metavar="PLAN")
@_OPTIONS
def explain(
    plan: str, why: str | None, why_not: str | None, budget: float, profile: str | None
) -> None:
    """Say what PLAN, a file of Plan.save, does and why.

    Without --why: what each layer does, what the step waits for, and what is certain.
    """
    from autoddl import load

    click.echo(str(load(plan).explain(why, why_not, profile=profile, budget=budget)))
