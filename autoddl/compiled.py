"""Compile inner loops to machine code, where NumPy would take a call for a handful of numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.caching import FunctionCache

from autoddl.terminal.status_line import on_terminal, write

F = TypeVar("F", bound=Callable[..., Any])


class ProofCache(FunctionCache):
    """Numba's cache of machine code, begun anew where it can't be read.

    Numba compares the stamp of the source only after it has unpickled the index, and that fails if a
    named tuple in it was renamed since: an update of autoddl would end in an AttributeError. So would a
    file that a full disk cut off, or that belongs to somebody else, in what else unpickling raises.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for a signature, None if there is none that can be read."""
        _COMPILATION.begin_one()
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling damaged bytes may raise anything
            with suppress(Exception):
                self.flush()
            return None
        finally:
            _COMPILATION.end_one()

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, if there is room for it."""
        with suppress(OSError):
            super().save_overload(sig, data)


def compiled(function: F) -> F:
    """Compile `function` (numba) when it is first called with arrays of some types.

    The machine code is kept beside its file, or in the user's cache where that can't be written; it is
    made anew when that file changes. So a compiled function calls only such of its own file, and the
    named tuples that it takes stand there as well: numba would not see that another file has changed.
    Where there is no place for it, as for files inside an archive, every process compiles for itself.
    """
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError):  # no place was found
        dispatcher._cache = ProofCache(function)
    return cast(F, dispatcher)


class _Compilation(event.Listener):
    """Counts the seconds that machine code takes, and says why a first plan takes longer."""

    def __init__(self) -> None:
        self.told, self.depth, self.begin, self.seconds = False, 0, 0.0, 0.0

    def begin_one(self) -> None:
        """Note when the outermost begins: what a function calls is made within that one's time."""
        self.depth += 1
        if self.depth == 1:
            self.begin = time.perf_counter()

    def end_one(self) -> None:
        """Count the time of the outermost."""
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.perf_counter() - self.begin

    def on_start(self, event: event.Event) -> None:
        """Say it once in a process, on a terminal, and only of functions of ours."""
        self.begin_one()
        module = event.data["dispatcher"].py_func.__module__ or ""  # code from a string has none
        ours = module.startswith(f"{__package__}.")
        if ours and not self.told:
            self.told = True
            if on_terminal():
                write("autoddl: compiling the search, once on this machine: 20 to 30 s …")

    def on_end(self, event: event.Event) -> None:
        """Count it."""
        self.end_one()


_COMPILATION = _Compilation()
event.register("numba:compile", _COMPILATION)


def clock_s() -> float:
    """Return the seconds of a clock that stands still while inner loops are compiled or loaded.

    Budgets of searches are counted by it: the first plan on a machine is as good as any later one.
    """
    return time.perf_counter() - _COMPILATION.seconds
