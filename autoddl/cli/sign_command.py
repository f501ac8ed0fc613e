"""`python -m autoddl sign`: check files that were edited on purpose, and sign them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

KINDS = ("plan", "program", "profile")


@click.command("sign")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
def command(files: tuple[str, ...]) -> None:
    """Check each FILE, a plan, program or profile that was edited on purpose, and sign it.

    Files carry a digest of their content, and are refused where it is another one. A file that is
    wrong in itself is refused here, too, and stays as it is.
    """
    from autoddl import signed_files, store

    for file in files:
        text = store.content(file, f"file {store.told(file)}", "name a file of autoddl")
        kind = _kind(text, file)
        _readers()[kind](text, f"{kind} file {store.told(file)}")
        signed_files.write(file, text, indent=-1 if kind == "program" else 1)
        print(f"signed {kind} {store.told(file)}")


def _readers() -> Mapping[str, Callable[[bytes, str], Any]]:
    """Return what reads, and so checks, each kind of file."""
    from autoddl.perfmodel import profile
    from autoddl.plan import codec
    from autoddl.sbp.program import Program

    return {"plan": codec.decode, "program": Program.decode, "profile": profile.from_json}


def _kind(text: bytes, file: str) -> str:
    """Return which kind of file a text is.

    Raises:
        AutoDDLError: it is none of ours.
    """
    import msgspec

    from autoddl import store
    from autoddl.errors import AutoDDLError

    try:
        data = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        data = None
    found = str(data.get("format")) if isinstance(data, dict) else ""
    kind = found.removeprefix("autoddl.")
    if kind not in KINDS:
        raise AutoDDLError(
            f"file {store.told(file)}: none of {', '.join(KINDS)}; name one of these"
        )
    return kind
