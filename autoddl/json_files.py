"""The JSON files that autoddl writes and reads: versioned, with a digest, each refusal one line.

    {"format": "autoddl.mesh", "version": 1, "shape": [2, 4], "digest": "9a0c…"}

`digest` is the SHA-256 of all other fields as JSON with sorted keys and without blanks, so a file may be
indented anew, but no value in it may change: a damaged one is refused before it is believed. It is no
signature of a person; whoever edits a file on purpose signs it with `python -m autoddl sign FILE`, which
checks it first.

msgspec checks types and unknown fields; what it says is completed here with the key of a mapping, which
it leaves out, and with the value that it found:

    network.json: $.links[1].alpha_s: expected `float`, got `str`: '1'; measure again with …
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from autoddl import store
from autoddl.errors import MOST_SHOWN, AutoDDLError, one_line, shown

T = TypeVar("T")

DIGEST = "digest"  # of a file's other fields, which is none of the value
SIGN = "python -m autoddl sign"
UNSIGNED = f"if it was edited on purpose: `{SIGN} FILE`"

_ROUNDING = 1e-9  # differences of sums in another order may be below zero
Seconds = Annotated[float, Meta(ge=-_ROUNDING, le=1e9)]
Share = Annotated[float, Meta(ge=-_ROUNDING, le=1)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 62)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Times = Annotated[float, Meta(ge=1, le=1e9)]
"""Ranges of what is predicted or counted, which files are held to where their values are decoded."""


class FieldError(AutoDDLError, ValueError):
    """Report a value that can't be, from the `__post_init__` of what holds it; decoders add the path."""


def decode(
    text: bytes | str, kind: type[T], *, form: tuple[str, int], where: str, remedy: str
) -> T:
    """Return the value of type `kind` that a file of the format and version `form` holds.

    `where` names the file in errors, `remedy` says how to make it again.

    Raises:
        AutoDDLError: the text is no JSON, of another format or version, or not such a value.
    """
    try:
        data = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise AutoDDLError(f"{where}: not JSON ({one_line(str(error))}); {remedy}") from None
    name, version = form
    if not isinstance(data, dict) or data.pop("format", None) != name:
        raise AutoDDLError(f"{where}: not a {name.removeprefix('autoddl.')}; {remedy}")
    data.pop(DIGEST, None)
    found = data.pop("version", None)
    if type(found) is not int or found != version:
        raise AutoDDLError(
            f"{where}: version {shown(found)}, this autoddl reads {version}; {remedy}"
        )
    try:
        return msgspec.convert(data, kind, dec_hook=parsed)
    except msgspec.ValidationError as error:
        raise AutoDDLError(f"{where}: {_explained(error, data, kind)}; {remedy}") from None
    except RecursionError:
        raise AutoDDLError(f"{where}: nested too deeply; {remedy}") from None


def parsed(kind: Any, value: Any) -> Any:
    """Read a value of a type that is written as text: what its `parse` reads."""
    if not isinstance(value, str):
        raise FieldError(f"got {shown(value)}, allowed is text that {kind.__name__}.parse reads")
    try:
        return _parsed(kind, value)
    except AutoDDLError as error:
        raise FieldError(f"{shown(value)}: {str(error)[:MOST_SHOWN]}") from None


@lru_cache(maxsize=1 << 12)
def _parsed(kind: Any, text: str) -> Any:
    return kind.parse(text)


def _explained(error: msgspec.ValidationError, data: Any, kind: type[Any]) -> str:
    """Return the path, what is wrong there, and, where msgspec found it, the value."""
    what, at, path = str(error).rpartition(" - at ")  # a field may be called "a - at b"
    what, path = (what, path.strip("`")) if at else (path, "$")
    where, value = _located(path, str(error), data, kind)
    if error.__cause__ is not None:  # said by the value itself
        return f"{where}: {one_line(str(error.__cause__))}"
    return f"{where}: {one_line(what[:1].lower() + what[1:])}: {shown(value)}"


def _located(path: str, message: str, data: Any, kind: type[Any]) -> tuple[str, Any]:
    """Return a path with the keys of mappings, for which msgspec writes "[...]", and what is there."""
    where, value = "$", data
    for step in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path):
        field, index = step
        if index == "...":
            key = _culprit(value, message, data, kind) if isinstance(value, dict) else None
            if key is None:
                return f"{where}[…]", value
            where, value = f"{where}[{shown(key)}]", value[key]
        elif index:
            where, value = f"{where}[{index}]", value[int(index)]
        else:
            where, value = f"{where}.{field}", value[field]
    return where, value


def _culprit(mapping: dict[Any, Any], message: str, data: Any, kind: type[Any]) -> Any:
    """Return the key of a mapping inside `data` that alone brings about the same message."""
    items = dict(mapping)
    try:
        for key, value in items.items():
            mapping.clear()
            mapping[key] = value
            try:
                msgspec.convert(data, kind, dec_hook=parsed)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return key
    finally:
        mapping.clear()
        mapping.update(items)
    return None


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
