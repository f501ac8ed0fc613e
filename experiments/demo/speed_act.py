"""Act two: a model on which the plan matters; ours and experts' plans take turns on the clock.

The GPT has a vocabulary of words, as many as LLaMA's, and a small batch: nearly all of its parameters are
in the table of tokens and in the head, and few tokens are seen before all their gradients are due.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoddl.api import Plan
from autoddl.errors import AutoDDLError
from autoddl.units import bytes_text, seconds_text
from experiments.demo.demo_ranks import CONSOLE, DemoRanks, act, counted
from experiments.demo.gains import Gain, gain
from experiments.lib.frames import RowStore
from experiments.lib.programs import captured

MODEL = "gpt"
SIZES: dict[str, Any] = {
    "layers": 2, "width": 256, "heads": 4, "sequence": 32, "vocabulary": 32000, "batch": 4,
    "optimizer": "adamw",
}  # fmt: skip
ROUNDS = 10
OURS, DATA = "ours", "data parallel"
SEARCHES = {OURS: "exact", DATA: DATA, "ZeRO 2": "ZeRO 2", "Megatron": "Megatron"}
_RANKS = "experiments.figures.clock.clock_ranks"
_LIMIT_S = 300.0
_QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Clocked:
    """A plan on the clock: predicted and measured seconds of a step, by turns, and first losses."""

    plan: Plan
    samples_s: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def quartiles_s(self) -> tuple[float, float, float]:
        """Return the lower quartile, the median and the upper quartile of the steps."""
        low, median, high = np.quantile(self.samples_s, _QUARTILES).tolist()
        return low, median, high


Turns = Mapping[str, Clocked]
"""Plans by name, ours first."""


def play(demo: DemoRanks) -> Turns:
    """Plan the model as we do and as experts do, each on its best mesh, and run all by turns.

    Raises:
        AutoDDLError: a process failed.
    """
    act("Act two: the seconds of a step")
    with counted(f"capture a GPT of {SIZES['vocabulary']} words and plan it {len(SEARCHES)} times"):
        program = captured(demo.folder / "words.json", MODEL, **SIZES)
        plans = {name: demo.plan(program, search) for name, search in SEARCHES.items()}
    for name, plan in plans.items():
        plan.save(demo.out / f"words_{name.replace(' ', '_')}.json")
    CONSOLE.print(str(plans[OURS]), markup=False)
    CONSOLE.print(reason(plans), markup=False, soft_wrap=True)
    with counted(f"train {ROUNDS} turns of {', '.join(plans)}"):
        return _by_turns(demo, plans)


def reason(plans: Mapping[str, Plan]) -> str:
    """Return why data parallelism is slow on this model, and what Megatron's recipe leaves whole."""
    program = plans[OURS].program
    count = sum(math.prod(program.tensor[name].shape) for name in program.parameter)
    tokens = math.prod(plans[OURS].inputs[0].shape)
    ours, data = (seconds_text(plans[name].estimate.communication_s) for name in (OURS, DATA))
    return (
        f"Data parallelism sums the gradients of all {count / 1e6:.1f} million parameters "
        f"({bytes_text(4 * count)}) after every {tokens} tokens: communication is predicted to take "
        f"{data} of its step, and {ours} of ours. Megatron here cuts linear layers, the head among them, "
        "and copies the table of tokens."
    )


def _by_turns(demo: DemoRanks, plans: Mapping[str, Plan]) -> Turns:
    """Run plans in one launch; each trains one step in each of the rounds."""
    result, files = demo.folder / "turns.jsonl", []
    for number, (name, plan) in enumerate(plans.items()):
        file = demo.folder / f"turns{number}.json"
        plan.save(file)
        files.append({"plan": name, "file": str(file)})
    job = {
        "model": MODEL, "sizes": SIZES, "plans": files, "rounds": ROUNDS, "key": {},
        "result": str(result), "running": str(demo.folder / "running"),
    }  # fmt: skip
    if error := demo.run(_RANKS, [json.dumps(job)], _LIMIT_S):
        raise AutoDDLError(error)
    rows = {row["plan"]: row for row in RowStore(result).rows}
    return {
        name: Clocked(plan, tuple(rows[name]["samples_s"]), tuple(rows[name]["losses"]))
        for name, plan in plans.items()
    }


def gains(turns: Turns) -> dict[str, Gain]:
    """Return how many times as fast ours is as each expert's plan."""
    ours = turns[OURS]
    return {
        name: gain(ours.samples_s, one.samples_s, same=_same(ours.plan, one.plan))
        for name, one in turns.items()
        if name != OURS
    }


def _same(one: Plan, other: Plan) -> bool:
    return one.mesh == other.mesh and one.states == other.states


def worst_loss(turns: Turns) -> float:
    """Return by how much the first losses of plans differ at most; all train the same."""
    return float(np.ptp([one.losses for one in turns.values()], axis=0).max())
