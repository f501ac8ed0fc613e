"""Lines of generated code, laid out as `ruff format` does, 100 columns wide."""

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


def laid_out(text: str, indent: int) -> list[str] | None:
    """Return a statement in lines, or None where it is too long and no call that can be split."""
    pad = " " * indent
    if len(pad + text) <= WIDTH:
        return [pad + text]
    match = re.fullmatch(r"([^()]*)\((.*)\)", text, re.DOTALL)
    if match is None or not _balanced(match[2]):
        return None
    head, body = match.groups()
    if len(pad) + 4 + len(body) <= WIDTH:
        return [f"{pad}{head}(", f"{pad}    {body}", f"{pad})"]
    parts = split_arguments(body)
    if any(len(pad) + 5 + len(part) > WIDTH for part in parts):
        return None
    return [f"{pad}{head}(", *(f"{pad}    {part}," for part in parts), f"{pad})"]


def split_arguments(text: str) -> list[str]:
    """Return the parts of an argument list, split at the outer commas."""
    parts, depth, start = [], 0, 0
    for i, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def comment(text: str, indent: int) -> list[str]:
    """Return a comment, wrapped."""
    pad = " " * indent + "# "
    return textwrap.wrap(text, WIDTH, initial_indent=pad, subsequent_indent=pad)


def docstring(text: str, indent: int) -> list[str]:
    """Return a docstring: one line, or what follows the first colon wrapped below it."""
    pad = " " * indent
    if indent + len(text) + 6 <= WIDTH:
        return [f'{pad}"""{text}"""']
    first, _, rest = text.partition(": ")
    wrapped = textwrap.wrap(rest, WIDTH, initial_indent=pad, subsequent_indent=pad)
    return [f'{pad}"""{first}.', "", *wrapped, f'{pad}"""']


def _balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return False
    return depth == 0
