"""Lines of generated code, laid out as `ruff format` does, 100 columns wide.

Example: a call that is too long is split at its outer commas, an argument a line; commas and brackets
inside strings do not count.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True)
class Comment:
    """A comment of its own line."""

    text: str


@dataclass(frozen=True)
class Assign:
    """Targets and a text: `a, b = text`; without targets it is returned."""

    targets: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Call:
    """A call of a module's function, by its group; `part` is the path of its parameters, if it has any.

    `part` "" passes the parameters of the caller.
    """

    targets: tuple[str, ...]
    group: int
    part: str | None
    args: tuple[str, ...]


Line = Comment | Assign | Call


def laid_out(text: str, indent: int, end: str = "") -> list[str] | None:
    """Return a statement in lines, or None where it is too long and no call that can be split."""
    pad = " " * indent
    if len(pad + text + end) <= WIDTH:
        return [pad + text + end]
    if text.startswith("return ") and len(split_arguments(text)) > 1:
        text = f"return ({text[7:]},)"
    match = re.fullmatch(r"([^()]*)\((.*)\)", _masked(text))
    if match is None or not _balanced(match[2]):
        return None
    head, body = text[: match.end(1)], text[match.start(2) : match.end(2)]
    if len(pad) + 4 + len(body) <= WIDTH and not body.endswith(","):
        return [f"{pad}{head}(", f"{pad}    {body}", f"{pad}){end}"]
    parts = split_arguments(body.rstrip(","))
    if any(len(pad) + 5 + len(part) > WIDTH for part in parts):
        return None
    return [f"{pad}{head}(", *(f"{pad}    {part}," for part in parts), f"{pad}){end}"]


def entry(head: str, value: str, note: str = "", *, indent: int = 4) -> list[str]:
    """Return an entry of a table: `head` ("name": or nothing), a list or tuple, and a note beside it."""
    pad, note = " " * indent, prose(note)
    one = f"{pad}{head}{value},"
    if len(one) + (len(note) + 4 if note else 0) <= WIDTH:
        return [one + (f"  # {note}" if note else "")]
    above = [f"{pad}# {note}"] if note else []
    if len(one) <= WIDTH:
        return [*above, one]
    parts = split_arguments(value[1:-1])
    return [
        *above,
        f"{pad}{head}{value[0]}",
        *(f"{pad}    {p}," for p in parts),
        f"{pad}{value[-1]},",
    ]


def table(name: str, note: str, rows: list[str]) -> list[str]:
    """Return the lines of a dict of rows, with a comment above."""
    return ["", f"# {prose(note)}", *([f"{name} = {{", *rows, "}"] if rows else [f"{name} = {{}}"])]


def split_arguments(text: str) -> list[str]:
    """Return the parts of an argument list, split at the outer commas."""
    parts, depth, start = [], 0, 0
    for i, sign in enumerate(_masked(text)):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def prose(text: str) -> str:
    """Return text as it may stand in comments and docstrings: printable, without quotes and "\\"."""
    return "".join(c if c.isprintable() and c not in "\"'\\" else "_" for c in text)


def comment(text: str, indent: int) -> list[str]:
    """Return a comment, wrapped."""
    pad = " " * indent + "# "
    return textwrap.wrap(prose(text), WIDTH, initial_indent=pad, subsequent_indent=pad)


def docstring(text: str, indent: int) -> list[str]:
    """Return a docstring: one line, or what follows the first colon wrapped below it."""
    pad, text = " " * indent, prose(text)
    if indent + len(text) + 6 <= WIDTH:
        return [f'{pad}"""{text}"""']
    first, _, rest = text.partition(": ")
    wrapped = textwrap.wrap(rest, WIDTH, initial_indent=pad, subsequent_indent=pad)
    return [f'{pad}"""{first}.', "", *wrapped, f'{pad}"""']


def _masked(text: str) -> str:
    """Return a text of the same length without the contents of its strings."""
    return re.sub(
        r"""(["'])((?:\\.|(?!\1).)*)\1""", lambda m: f"{m[1]}{'_' * len(m[2])}{m[1]}", text
    )


def _balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return False
    return depth == 0
