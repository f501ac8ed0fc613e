"""`python -m autoddl try`: run the best plans of a training script and keep the fastest."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from autoddl.cli.app import say, tell
from autoddl.cli.options import (
    OF_SCRIPTS,
    POSITIVE,
    RANKS,
    WORDS,
    check_words,
    example,
    option,
    with_options,
)
from autoddl.plan.search_report import PlanTrial
from autoddl.report.plan_text import WIDTH, trials_table
from autoddl.terminal.status_line import working
from autoddl.trials.trial_runs import fastest, plans_of
from autoddl.trials.trial_settings import MOST_STEPS, MOST_TRIALS, Trials
from autoddl.units import seconds_text

_PREFIX, _ASKED = "autoddl try", Trials()


_OPTIONS = with_options(
    option("--top", f"how many plans ({_ASKED.top})", click.IntRange(1, MOST_TRIALS), "K",
           default=_ASKED.top),
    option("--nproc-per-node ranks", "ranks of the script", RANKS, "N", required=True),
    option("--steps", f"timed steps of each plan ({_ASKED.steps})", click.IntRange(1, MOST_STEPS), "N",
           default=_ASKED.steps),
    option("--timeout timeout_s", f"end the ranks of a plan then ({_ASKED.timeout_s:g})", POSITIVE,
           "SECONDS", default=_ASKED.timeout_s),
    option("-o --output folder", f"folder for results and best.json ({_ASKED.folder})", Path, "DIR",
           default=_ASKED.folder),
)  # fmt: skip


@click.command(
    "try",
    context_settings=OF_SCRIPTS,
    options_metavar="--nproc-per-node N [OPTIONS]",
    epilog=example("try --nproc-per-node 2 --top 2 train.py"),
)
@_OPTIONS
@WORDS
def command(
    words: tuple[str, ...], ranks: int, top: int, steps: int, timeout_s: float, folder: Path
) -> None:
    """Run the best plans that a script's call of autoddl.optimize leaves open, and keep the fastest.

    Ranks run the script up to that call, which plans there; then each plan has ranks of its own, in which
    the call runs some steps of it. What fails or hangs is noted and passed over; the same command goes on
    where it stopped. The script uses the result with autoddl.load("trials/best.json").
    """
    check_words(words)
    settings = Trials(top, steps, timeout_s, folder)
    with working("planning"):
        program, plans = plans_of(words, ranks, settings)
    with working("running plans"):
        best = fastest(plans, program, words, settings, tell=_told)
    Console(width=WIDTH).print(trials_table(best.search.trials))
    say(f"wrote {folder / 'best.json'}")


def _told(trial: PlanTrial) -> None:
    found = "" if trial.measured_s is None else f", measured {seconds_text(trial.measured_s)}"
    note = f", {trial.note}" if trial.note else ""
    tell(_PREFIX, f"{trial.name}: predicted {seconds_text(trial.predicted_s)}{found}{note}")
