"""Run a script on ranks of OneFlow and read what they saw."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from autoddl.launch.launcher import launch

ROOT = Path(__file__).parents[2]
IN_TURN = Path(__file__).parent / "in_turn.py"
LIMIT_S = 400.0  # several times what any script takes on a busy machine


def environment() -> dict[str, str]:
    """Return what lets a rank import this checkout's `autoddl`, `experiments` and `tests`."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def on_ranks(script: Path, *arguments: object, ranks: int) -> None:
    """Run a script on so many ranks; what a rank that failed wrote last is shown."""
    command = [str(script), *map(str, arguments)]
    result = launch(command, nproc_per_node=ranks, timeout_s=LIMIT_S, env=environment())
    assert result.ok, "\n".join([result.message, *result.tail])


def in_one_launch(*runs: tuple[object, ...], ranks: int) -> None:
    """Run scripts with arguments one after the other in the same ranks: to start these takes seconds."""
    commands = [[str(word) for word in run] for run in runs]
    on_ranks(IN_TURN, json.dumps(commands), ranks=ranks)


def seen_by(ranks: int, folder: Path) -> list[Any]:
    """Return what every rank has written to rank0.json, rank1.json and so on."""
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
