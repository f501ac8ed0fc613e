"""Files that survive an interruption: JSON lines that go on after a cut-off one, writes in one piece.

`append(path, {"row": 1})` and a crash in the middle of the next line leave `{"row": 1}` and half a line:
`read` gives the first and names the second, and the next `append` begins a line of its own.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError, one_line, shown, why


def read(path: Path) -> tuple[dict[int, Any], list[int]]:
    """Return the values of a file of JSON lines by line number, from 1, and which are damaged."""
    values, damaged = {}, []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        try:
            values[number] = json.loads(line)
        except ValueError:
            damaged.append(number)
    return values, damaged


def append(path: Path, value: Any) -> None:
    """Add a JSON line to a file, on the disk when this returns."""
    with path.open("ab+") as file:
        text = json.dumps(value) + "\n"
        if file.tell() > 0 and path.is_file():
            file.seek(-1, os.SEEK_END)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode())
        file.flush()
        if path.is_file():
            os.fsync(file.fileno())


def check_writable(path: Path | None) -> None:
    """Make sure, before there is anything to write, that a file can be written; leave none behind.

    Raises:
        AutoDDLError: it can't be.
    """
    if path is None:
        return
    fresh = not exists(path)
    try:
        with path.open("a"):
            pass
        if fresh:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise AutoDDLError(
            f"output file {told(path)}: {one_line(why(error))}; give another with -o"
        ) from None


def told(path: object) -> str:
    """Return a path as a line of an error or a table shows it: printable, and not too long."""
    text = str(path) if isinstance(path, str | Path) else shown(path)
    return one_line(text)


def exists(path: str | Path) -> bool:
    """Tell whether there is something at a path, which may be none that the system allows."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def content(path: str | Path, where: str, remedy: str) -> bytes:
    """Return the bytes of a regular file; of a pipe one would wait for, nobody may write them.

    `where` says in errors which file it is, `remedy` what to do.

    Raises:
        AutoDDLError: it can't be read.
    """
    try:
        if exists(path) and not Path(path).is_file():
            raise AutoDDLError(f"{where}: no regular file; {remedy}")
        return Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:  # ValueError: NUL in the name
        raise AutoDDLError(f"{where}: can't be read ({one_line(why(error))}); {remedy}") from None


def write(path: str | Path | None, data: bytes) -> None:
    """Write a file whole or not at all, so that a full disk does not spoil the old one.

    Raises:
        AutoDDLError: it can't be written.
    """
    if path is None:
        return
    try:
        path = Path(path)
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_bytes(data)
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(data)
            if path.exists():
                shutil.copymode(path, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, TypeError, ValueError) as error:  # ValueError: NUL in the name
        raise AutoDDLError(
            f"output file {told(path)}: {one_line(why(error))}; make room, or name another file (-o)"
        ) from None


def csv_bytes(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return these columns of rows as CSV."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()
