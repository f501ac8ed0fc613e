"""Time calls of functions of global tensors, on all ranks at once, and report what they took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import oneflow as flow

Floats = npt.NDArray[np.float64]
Function = Callable[..., Any]
Program = tuple[Function, Sequence[Any]]
"""What to call, and with which inputs."""

LEAST_PAIRS = 5
_MOST_BETWEEN_LOOKS = 64  # repetitions between two looks at the clock


class _Graph(flow.nn.Graph):
    def __init__(self, body: Function) -> None:
        super().__init__()
        self._body = body

    def build(self, *inputs: Any) -> Any:
        return self._body(*inputs)


def function_of(body: Function, mode: str) -> Function:
    """Return `body` as it is (mode "eager") or as the build of an nn.Graph ("graph")."""
    return _Graph(body) if mode == "graph" else body


def call(function: Function, inputs: Sequence[Any]) -> tuple[float, Any]:
    """Return the seconds of one call on this rank, and its result.

    It starts at a barrier, which the ranks leave within 0.1 ms.
    """
    flow.comm.barrier()
    start = time.perf_counter()
    result = function(*inputs)
    for tensor in result if isinstance(result, tuple) else (result,):
        tensor.to_local()
    flow._oneflow_internal.eager.Sync()
    return time.perf_counter() - start, result


@dataclass(frozen=True)
class Effort:
    """How long to repeat: `iterations` at most, `limit_s` seconds, after `warm_up`.

    There are `least` repetitions (if that are no more), whatever the limit.
    """

    iterations: int
    warm_up: int
    limit_s: float
    least: int = LEAST_PAIRS


def turns(programs: Sequence[Program], effort: Effort) -> Floats:
    """Return the seconds of calls of programs in turn, shape [repetitions, programs].

    Every repetition lasts until its slowest rank is done. Taking turns, all see the same load of
    the machine. All ranks return the same.
    """
    begin = time.perf_counter()
    for _ in range(effort.warm_up):
        for program in programs:
            call(*program)
    done = np.empty((0, len(programs)))
    count = min(2, effort.iterations)
    while count > 0:
        seconds = [call(*program)[0] for _ in range(count) for program in programs]
        all_ranks = of_all_ranks([*seconds, time.perf_counter() - begin]).max(0)
        done = np.concatenate([done, all_ranks[:-1].reshape(-1, len(programs))])
        left_s = effort.limit_s - float(all_ranks[-1])
        fitting = int(left_s / float(np.median(done.sum(1))))
        count = max(min(fitting, _MOST_BETWEEN_LOOKS, 2 * len(done)), effort.least - len(done))
        count = min(count, effort.iterations - len(done))
    return done


def report(folder: Path, line: Any) -> None:
    """Append a line to results.jsonl, on rank 0: what a crash ends later is not lost."""
    if flow.env.get_rank() == 0:
        with (folder / "results.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def of_all_ranks(values: Sequence[float]) -> Floats:
    """Return every rank's values, shape [ranks, len(values)], on every rank."""
    world = flow.env.get_world_size()
    if world == 1:
        return np.array([values], dtype=np.float64)
    mesh = flow.placement("cpu", list(range(world)))
    local = flow.tensor(np.array([values], dtype=np.float64))
    cut = local.to_global(placement=mesh, sbp=flow.sbp.split(0))
    whole: Floats = cut.to_global(placement=mesh, sbp=flow.sbp.broadcast).to_local().numpy().copy()
    return whole
