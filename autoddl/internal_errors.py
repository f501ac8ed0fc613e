"""What is no AutoDDLError is a mistake of autoddl: one line that says so, and the trace in a file.

    with reported("optimize"):
        ...

turns a KeyError inside into "optimize: internal error (KeyError: 'w'), a mistake of autoddl; please
report it with the trace in /tmp/autoddl-trace-1f3a.txt".
"""

from __future__ import annotations

import contextlib
import platform
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from autoddl.errors import AutoDDLError, one_line


class InternalError(AutoDDLError):
    """Report a mistake of autoddl, in one line."""


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
        file = _written(error)
        trace = f" with the trace in {file}" if file else ""
        raise InternalError(
            f"{what}: internal error ({type(error).__name__}: {one_line(str(error))}), a mistake of "
            f"autoddl; please report it{trace}"
        ) from error


def _written(error: Exception) -> Path | None:
    """Write the trace of an error to a new file and return that; None if there is no room."""
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
