"""Measure links and devices on real ranks and fit a profile: `python -m autoddl.fit_network`.

`engine.collectives` says what is timed. Group sizes are the divisors of the number of ranks; each
is measured with all groups of that size at work at once, and the device with all ranks at work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import autoddl
from autoddl.engine.launch import LaunchError, launch
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.samples import device_of, links_of, points_of
from autoddl.sbp.boxing import COLLECTIVES

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the part of the whole that is done, 0 to 1."""

LEVEL = "gpu"
MODES = ("graph", "eager")
QUICK_SIZES = (1 << 14, 1 << 17, 1 << 20, 1 << 22)
SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22, 1 << 24)
_QUICK_LIMIT_S, _LIMIT_S = 300.0, 1800.0
_MOST_STEPS = 12
_CHAIN_BYTES = 8 << 20  # short chains of long messages: OneFlow keeps a graph's buffers for ever
_BUFFERS_PER_STEP = 8  # tensors that a step of a chain and of its twin keep
_ATTEMPTS = 2  # nn.Graph of OneFlow 0.9 dies of a race now and then


@dataclass(frozen=True)
class Case:
    """One chain of engine.collectives; `size_bytes` is the n of perfmodel.collectives."""

    collective: str
    group_size: int
    size_bytes: int

    @property
    def steps(self) -> int:
        """Return how many boxings the chain has, an even number."""
        return max(2, min(_MOST_STEPS, _CHAIN_BYTES // self.size_bytes // 2 * 2))

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory the case takes on each rank."""
        return _BUFFERS_PER_STEP * self.steps * self.size_bytes


def measure(
    nproc_per_node: int,
    *,
    quick: bool = False,
    mode: str = "graph",
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
    name: str = "measured",
) -> Profile:
    """Measure `nproc_per_node` OneFlow ranks on this machine's CPU and return their profile.

    Args:
        nproc_per_node: ranks; 1 gives a profile without links.
        quick: fewer message sizes and repetitions: half a minute on 4 ranks.
        mode: "graph" measures boxing in nn.Graph, which plans use; "eager" that of eager tensors.
        progress: is told how far it is.
        timeout_s: seconds for everything; by default 300 if quick, else 1800.
        name: of the profile.

    Raises:
        LaunchError: a rank failed (twice), or the time limit was reached.
        AutoDDLError: bad arguments, no OneFlow, or too much noise to fit anything.
    """
    _check(nproc_per_node, mode, timeout_s)
    limit_s = timeout_s if timeout_s is not None else _QUICK_LIMIT_S if quick else _LIMIT_S
    cases = schedule(nproc_per_node, QUICK_SIZES if quick else SIZES)
    batches = pack(cases, memory_bytes=_available_bytes() // 2 // nproc_per_node)
    repetitions = 5 if quick else 15
    end_s = time.monotonic() + limit_s
    tell = progress or (lambda text, done: None)
    links: list[list[Any]] = [[] for _ in range(nproc_per_node)]
    device: list[dict[str, Any]] = []
    for i, batch in enumerate(batches):
        task = {
            "mode": mode,
            "repetitions": repetitions,
            "cases": [{**vars(case), "steps": case.steps} for case in batch],
            "device": i == len(batches) - 1,
        }
        part = _Part(tell, i, len(batches), len(batch) + (7 if task["device"] else 0))
        results = _run(nproc_per_node, task, part, end_s)
        for collected, result in zip(links, results, strict=True):
            collected.extend(result["links"])
        device = [result["device"] for result in results]
    cores = len(os.sched_getaffinity(0))
    return Profile(
        name=name,
        source=(
            f"measured with python -m autoddl.fit_network on {nproc_per_node} CPU ranks, "
            f"{cores} cores, loopback" + (", quick" if quick else "")
        ),
        kind="measured",
        device_type="cpu",
        levels=(LEVEL,),
        links=links_of(points_of(links), LEVEL),
        device=device_of(
            device,
            name=f"{_cpu_name()}, one of {nproc_per_node} ranks on {cores} cores",
            memory_bytes=_total_bytes() // nproc_per_node,
        ),
    )
