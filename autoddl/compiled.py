"""Compile inner loops to machine code, where NumPy would take a call for a handful of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` (numba) when it is first called with arrays of some types.

    The machine code is kept beside its file, or in the user's cache where that can't be written; it is
    made anew when that file changes. So a compiled function calls only such of its own file: numba
    would not see that another file has changed.
    """
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
