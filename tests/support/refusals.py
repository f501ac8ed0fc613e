"""What an action is refused with, for scripts that ranks run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoddl.errors import AutoDDLError


def refusal(action: Callable[[], Any]) -> str:
    """Return the line of the error that an action raises, or that there was none."""
    try:
        action()
    except AutoDDLError as error:
        return str(error)
    return "no error"
