"""The one family of errors that users see: what, where, got, allowed, what to do; stdlib only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

MOST_SHOWN = 200  # characters of a value that an error repeats


class AutoDDLError(Exception):
    """Report bad input or an impossible request in one line that says what to do about it."""


class SupportsLines(Protocol):
    """What an error has to say beyond its line."""

    def lines(self, *, terminal: bool = False) -> Sequence[str]:
        """Return it line by line, with options as Python has them, or the command line."""


class RuleError(AutoDDLError):
    """Report an op type without a rule in strict mode, or a rule that does not fit its op."""


class InfeasibleError(AutoDDLError):
    """Report that no assignment satisfies the constraints (memory, pins, divisibility).

    `needed_bytes` is the least memory per device of what was tried, if that is what is missing, and
    `least_bytes` a bound below all that was not tried for that; `hopeless` tells that more was not tried
    since far too much is missing. What is in the way and what would help is its `diagnosis`, a table
    behind the line, where `autoddl.optimize` has made one.
    """

    needed_bytes: int | None = None
    least_bytes: int | None = None
    hopeless: bool = False
    diagnosis: SupportsLines | None = None

    def __str__(self) -> str:
        return "\n".join([self.line, *(self.diagnosis.lines() if self.diagnosis else ())])

    @property
    def line(self) -> str:
        """Return what is wrong, in one line."""
        return super().__str__()


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """Return a value as an error repeats it: its first characters, on one line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of thousands of digits
        text = f"a {type(value).__name__} too long to be shown"
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text as one line of an error repeats it: printable, the first characters."""
    return printable(text)[:most]


def near(word: str, names: Iterable[str]) -> str:
    """Return what an error adds where a name was misspelt: "; did you mean h100?", "" if none is near."""
    from difflib import get_close_matches

    found = get_close_matches(word[:MOST_SHOWN], list(names), 1)
    return f"; did you mean {found[0]}?" if found else ""


def why(error: Exception, otherwise: str = "") -> str:
    """Return the system's word for an error, or its own text: ValueError is for NUL in a name."""
    return getattr(error, "strerror", None) or otherwise or str(error)


def printable(text: str) -> str:
    """Return a text as a terminal may get it: on one line, without escape sequences."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, most: int) -> str:
    """Return a text as one printable line, without its middle where it is longer."""
    text = printable(text)
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"
