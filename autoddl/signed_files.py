"""The JSON files that autoddl writes and reads: each carries a digest of its content.

    {"format": "autoddl.mesh", "version": 1, "shape": [2, 4], "digest": "9a0c…"}

`digest` is the SHA-256 of all other fields as JSON with sorted keys and without blanks, so a file may be
indented anew, but no value in it may change: a damaged one is refused before it is believed. It is no
signature of a person; whoever edits a file on purpose signs it with `python -m autoddl sign FILE`, which
checks it first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from autoddl import store
from autoddl.decoding import DIGEST
from autoddl.errors import AutoDDLError, one_line

T = TypeVar("T")

SIGN = "python -m autoddl sign"
UNSIGNED = f"if it was edited on purpose: `{SIGN} FILE`"


def digest(data: Mapping[str, Any]) -> str:
    """Return the digest of the content of a file."""
    own = {name: value for name, value in data.items() if name != DIGEST}
    return hashlib.sha256(msgspec.json.encode(own, order="deterministic")).hexdigest()


def signed(text: bytes, *, indent: int = -1) -> bytes:
    """Return the text of a JSON object with the digest of its content, as files have it.

    A negative `indent` leaves out all blanks.
    """
    data = msgspec.json.decode(text)
    whole = msgspec.json.encode({**data, DIGEST: digest(data)})
    return msgspec.json.format(whole, indent=indent) + b"\n"


def write(path: str | Path, text: bytes, *, indent: int = -1) -> None:
    """Sign a JSON object and write it, whole or not at all.

    Raises:
        AutoDDLError: it can't be written.
    """
    store.write(path, signed(text, indent=indent))


def read(path: str | Path, decode: Callable[[bytes, str], T], *, what: str, remedy: str) -> T:
    """Return what a file holds that was not changed since it was signed.

    `decode` reads its text, and gets how errors call it; of a file that is wrong in itself it says what
    is. `what` it is, such as "plan file", and `remedy`, how to make it again, stand in errors, too.

    Raises:
        AutoDDLError: the file is missing or not regular, or its digest is another one; as `decode`.
    """
    where = f"{what} {store.told(path)}"
    return verified(store.content(path, where, remedy), decode, where=where, remedy=remedy)


def verified(text: bytes, decode: Callable[[bytes, str], T], *, where: str, remedy: str) -> T:
    """Return what a text holds that was not changed since it was signed, as `read`."""
    found = decode(text, where)
    try:
        data = msgspec.json.decode(text)
    except ValueError as error:  # in text that `decode` had no need to read
        raise AutoDDLError(f"{where}: not JSON ({one_line(str(error))}); {remedy}") from None
    if data.get(DIGEST) != digest(data):
        state = "was changed after it was written" if DIGEST in data else "has no digest"
        raise AutoDDLError(f"{where}: {state}; {remedy}, or {UNSIGNED}")
    return found
