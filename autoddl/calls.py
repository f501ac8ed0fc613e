"""What calls of autoddl have around them: its mistakes in one line, the collection of garbage put off.

What is no AutoDDLError is a mistake of autoddl, of which the trace is kept in a file:

    with reported("optimize"):
        ...

turns a KeyError inside into "optimize: internal error (KeyError: 'w'), a mistake of autoddl; please
report it with the trace in /tmp/autoddl-trace-1f3a.txt".
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec

from autoddl.errors import AutoDDLError, one_line

_P = ParamSpec("_P")


class InternalError(AutoDDLError):
    """Report a mistake of autoddl, in one line."""


_OF_USERS = "of a callback that autoddl was given"  # in the __dict__ of an error


def callback(function: Callable[_P, None]) -> Callable[_P, None]:
    """Return a function of the user's whose errors come out as they are."""

    @functools.wraps(function, updated=())  # whatever can be called
    def called(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            error.__dict__[_OF_USERS] = True
            raise

    return called


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn errors that users should never see into one line; `what` is what they called.

    Raises:
        InternalError: there was one, which is its cause.
    """
    try:
        yield
    except (AutoDDLError, MemoryError):
        raise
    except Exception as error:
        if _OF_USERS in error.__dict__:
            raise
        file = kept(error)
        trace = f" with the trace in {file}" if file else ""
        raise InternalError(
            f"{what}: internal error ({type(error).__name__}: {one_line(str(error))}), a mistake of "
            f"autoddl; please report it{trace}"
        ) from error


def kept(error: Exception) -> Path | None:
    """Write the trace of an error to a new file and return that; None if there is no room."""
    import platform  # these take longer than all else that `import autoddl` loads
    import tempfile
    import traceback
    from importlib import metadata

    versions = [f"Python {sys.version}", platform.platform()]
    for name in ("autoddl", "oneflow", "numpy", "scipy", "numba", "msgspec"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    text = "\n".join([*versions, "", "".join(traceback.format_exception(error))])
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="autoddl-trace-", suffix=".txt", delete=False, errors="replace"
        ) as file:
            file.write(text)
    except OSError:
        return None
    return Path(file.name)


@contextmanager
def uncollected() -> Iterator[None]:
    """Put the collection of garbage off: it takes a third of the time that small objects take.

    Plans of many meshes leave no cycles worth mentioning: what they drop is freed at once.

    Freezing what was made instead would keep traced graphs of OneFlow that are garbage, and
    destroying these late aborts its processes.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
