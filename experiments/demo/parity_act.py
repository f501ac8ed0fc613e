"""Act one: a GPT trains under its plan with the losses that it has in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoddl.errors import AutoDDLError
from experiments.demo.demo_ranks import CONSOLE, DemoRanks, act, counted
from experiments.fidelity.measure import Run
from experiments.lib import figures, ranks

TRAIN = "experiments.demo.train"
LIMIT_S = 240.0

Losses = Mapping[str, Sequence[float]]


def play(demo: DemoRanks, steps: int, model: Sequence[str]) -> float:
    """Train so many steps in one process and on the ranks; return by how much losses differ at most.

    `model` are options of the training script. Writes plan.json, losses.json and the picture of it.

    Raises:
        AutoDDLError: a process failed.
    """
    act("Act one: the losses of one process")
    program, plan_file = demo.folder / "program.json", demo.out / "plan.json"
    with counted("capture a GPT and plan it"):
        _run(_in_one_process, ["--capture", str(program), *model])
        plan = demo.plan(program)
    plan.save(plan_file)
    CONSOLE.print(str(plan), markup=False)
    several = f"{plan.devices} ranks"
    runs: dict[str, tuple[Run, list[str]]] = {
        "one process": (_in_one_process, []), several: (demo.run, [str(plan_file)]),
    }  # fmt: skip
    losses = {}
    for name, (run, more) in runs.items():
        result = demo.folder / "losses.json"
        with counted(f"train {steps} steps, {name}"):
            _run(run, ["--steps", str(steps), "--result", str(result), *model, *more])
        losses[name] = json.loads(result.read_text())
    _save(losses, demo.out / "losses")
    return max(abs(a - b) for a, b in zip(*losses.values(), strict=True))


def _in_one_process(module: str, words: Sequence[str], limit_s: float) -> str:
    return ranks.started(module, words, 1, limit_s)


def _run(run: Run, words: Sequence[str]) -> None:
    if error := run(TRAIN, words, LIMIT_S):
        raise AutoDDLError(error)


def _save(losses: Losses, file: Path) -> None:
    """Write two curves of losses as FILE.json and draw them."""
    from matplotlib.ticker import MaxNLocator

    file.with_suffix(".json").write_text(json.dumps(losses, indent=1) + "\n")
    figure, ((axis,),) = figures.panels(size=(7, 4))
    styles = [(figures.COLOURS[0], "-", 3.5), (figures.COLOURS[1], "--", 1.8)]
    for (name, values), (color, line, width) in zip(losses.items(), styles, strict=True):
        steps = range(1, len(values) + 1)
        axis.plot(steps, values, line, color=color, linewidth=width, label=name)
    axis.set(xlabel="training step", ylabel="cross-entropy per byte (nats)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title("The same weights and data, one process and distributed")
    axis.legend()
    figures.save(figure, file)
