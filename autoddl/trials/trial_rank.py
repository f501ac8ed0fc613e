"""A rank of a trial: `python -m autoddl.trials.trial_rank SCRIPT … FOLDER`, which has task.json."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from autoddl.launch.main import run_command
from autoddl.trials import trial_task


def main(argv: Sequence[str]) -> None:
    """Run a script up to the call of `optimize` that the task is of."""
    *words, folder = argv
    text = Path(folder, "task.json").read_bytes()
    task = msgspec.json.decode(text, type=trial_task.TrialTask)
    trial_task.begin(trial_task.RankOfTrial(task, Path(folder, "results.jsonl")))
    run_command(words)


if __name__ == "__main__":
    main(sys.argv[1:])
