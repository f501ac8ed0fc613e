"""Run one rank's script so that it ends when it should; stdlib only.

The launcher starts every rank as ``python main.py LAUNCHER_PID CORE (script.py | -m module) [args…]``.
It imports nothing of autoddl, so that a rank costs no more than its script. Three things differ from
running the script itself:

* an uncaught exception or ``sys.exit(n)`` with n other than 0 ends the process at once. OneFlow's
  exit hook closes the session together with all ranks and so would hang in the rank that failed.
  ``atexit`` handlers do not run in this case;
* when the launcher dies, the kernel kills the rank;
* with a number for CORE, not ``any``, the rank runs on that core only, and OneFlow's scheduler sleeps
  while it waits (waiting.py), since other ranks run there too.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from types import TracebackType
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Run ``argv`` = launcher pid, core, a script or ``-m module``, its arguments."""
    _die_with(int(argv[0]))
    if argv[1] != "any":
        os.sched_setaffinity(0, {int(argv[1])})
        _beside("waiting.py")["install"]()
    try:
        run_command(argv[2:])
    except SystemExit as error:
        code = _exit_status(error.code)
        if code:
            _end(code)
    except BaseException as error:
        _report(error)
        _end(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
    _beside("progress.py")["end"]()  # OneFlow's exit hook waits for all ranks


def run_command(command: list[str]) -> None:
    """Run the script or module as ``__main__``, with Python's ``sys.argv`` and ``sys.path``."""
    as_module = command[0] == "-m"
    sys.argv = command[1:] if as_module else command
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if as_module else os.path.dirname(os.path.realpath(command[0]))
    if as_module:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


def _beside(file: str) -> dict[str, Any]:
    """Return the names of a module of this folder."""
    return runpy.run_path(os.path.join(os.path.dirname(__file__), file))


def _die_with(launcher_pid: int) -> None:
    """Ask the kernel for SIGKILL when the launcher dies, and go if it has died already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        os._exit(1)


def _exit_status(code: object) -> int:
    """Give Python's exit status for ``SystemExit(code)``; print a code that is a message."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _report(error: BaseException) -> None:
    """Print the traceback through ``sys.excepthook``, without our and runpy's frames."""
    try:
        error.__traceback__ = _user_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as hook_error:
        sys.stderr.write(f"sys.excepthook failed with {hook_error!r}; the error was {error!r}\n")


def _user_frames(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename not in (__file__, runpy.__file__, "<frozen runpy>"):
            break
        traceback = traceback.tb_next
    return traceback


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        # The script may have closed it, or nobody reads any more.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
