"""`python -m autoddl sign`: check files that were edited on purpose, and sign them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from autoddl.cli.app import say
from autoddl.errors import AutoDDLError


@click.command("sign")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
def command(files: tuple[str, ...]) -> None:
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
