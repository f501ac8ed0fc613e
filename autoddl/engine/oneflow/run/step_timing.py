"""Time steps of training on all ranks at once, and end ranks that are done."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import oneflow as flow

from autoddl.engine.interface import TrainingStep


def seconds_of(
    step: TrainingStep, call: tuple[Sequence[Any], Mapping[str, Any]], warm_up: int, steps: int
) -> list[float]:
    """Return the seconds of each of some steps, after a few that are not timed.

    Each begins when all ranks are there, and ends when all have updated their parameters.
    """
    return [_once(step, *call) for _ in range(warm_up + steps)][warm_up:]


def _once(step: TrainingStep, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    flow.comm.barrier()
    begin_s = time.perf_counter()
    step(*args, **kwargs)
    flow._oneflow_internal.eager.Sync()
    flow.comm.barrier()
    return time.perf_counter() - begin_s


def leave() -> NoReturn:
    """End this process with all others, without OneFlow's own end, which takes long and may hang."""
    flow.comm.barrier()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the script may have closed it
            stream.flush()
    os._exit(0)
