"""Budgets of searches in CPU seconds of this process: other work does not end them earlier."""

from __future__ import annotations

import time
from types import SimpleNamespace

from autoddl import compiled
from autoddl.search.budget import Budget

LITTLE = Budget(evaluations=3000)  # for any plan, whatever it costs


def count_cpu_seconds() -> None:
    """Let `compiled.clock_s`, by which searches count, stand still while this process waits."""
    compiled.time = SimpleNamespace(perf_counter=time.process_time)
