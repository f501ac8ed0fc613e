"""Read short notations, and show in one line where they go wrong."""

from __future__ import annotations

import re

from autoddl.errors import AutoDDLError, shown

NEAR = 30  # characters on either side of a mark that an error repeats


class NotationReader:
    """Take a text apart from left to right; blanks between the pieces are skipped."""

    def __init__(self, what: str, text: str, allowed: str) -> None:
        """Read `text`, which errors call `what`; `allowed` ends them with what would be right."""
        self.what, self.text, self.allowed = what, text, allowed
        self.position = 0

    def take(self, pattern: str) -> str | None:
        """Return the next piece that matches, or None and stay."""
        match = re.compile(rf"\s*({pattern})").match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        return match[1]

    def need(self, pattern: str, name: str) -> str:
        """Return the next piece.

        Raises:
            AutoDDLError: it does not match; the error quotes the text and marks the place.
        """
        found = self.take(pattern)
        if found is None:
            raise self.error(f"{name} expected")
        return found

    @property
    def done(self) -> bool:
        """Tell whether only blanks are left."""
        return not self.text[self.position :].strip()

    def error(self, reason: str, at: int | None = None) -> AutoDDLError:
        """Return an error that quotes the text with a mark at `at` (default: where reading is)."""
        rest = self.text[self.position :]
        place = self.position + len(rest) - len(rest.lstrip()) if at is None else at
        before, behind = self.text[max(0, place - NEAR) : place], self.text[place : place + NEAR]
        marked = shown(f"{before} <-- HERE {behind}".strip())
        return AutoDDLError(
            f"{self.what} {shown(self.text, 2 * NEAR)}: {reason} at {marked}; {self.allowed}"
        )
