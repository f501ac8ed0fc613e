"""Why OneFlow failed, in one line.

Example: of "\\x1b[1mError\\x1b[0m: shapes differ\\n  File …" it is "Error: shapes differ".
"""

from __future__ import annotations

import re

from autoddl.errors import one_line

_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_MOST = 300  # characters


def reason(error: Exception) -> str:
    """Return the first line of an error of the engine that says something, without its colours."""
    lines = _COLOURS.sub("", str(error)).splitlines()
    return one_line(next((line.strip() for line in lines if line.strip()), repr(error)), _MOST)
