"""Ranks of this machine, and processes of their own: modules of experiments are found in both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.launch.launcher import launch

ROOT = Path(__file__).parents[2]


def environment(root: Path = ROOT) -> dict[str, str]:
    """Return what a process needs to find the modules of a checkout, this one by default."""
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(root) + (os.pathsep + path if path else "")}


def started(
    module: str, arguments: Sequence[str], ranks: int, limit_s: float,
    env: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Run a module on ranks within a time limit; return what went wrong, or nothing."""
    result = launch(
        ["-m", module, *arguments], nproc_per_node=ranks, timeout_s=limit_s,
        env={**environment(), **(env or {})}, stream_rank0=False,
    )  # fmt: skip
    return failure(result)


def failure(result: Any) -> str:
    """Return in one line how a launcher's ranks failed, with their last lines; nothing if all is well."""
    return "" if result.ok else f"{result.message}: {' | '.join(result.tail[-3:])}"


def in_child(
    module: str, arguments: Sequence[str], limit_s: float | None = None,
    env: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Run a module in a process of its own and return what it prints.

    Raises:
        AutoDDLError: it failed, with the last line that it wrote, or was not done in time.
    """
    command = [sys.executable, "-m", module, *arguments]
    whole = {**os.environ, **environment(), **(env or {})}
    try:
        done = subprocess.run(command, env=whole, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise AutoDDLError(f"not done after {limit_s:g} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise AutoDDLError(last[-1])
    return done.stdout
