"""What validation beside training costs: `python -m experiments.bench.validation`.

Four ranks train a GPT, and call an evaluation graph over its parameters, which stay in the states in
which training has them. It is held against the same plan over a model of its own; the bar is at most 1.1
times as long. How long it would take if its parameters were free is printed, too.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from autoddl.launch.launcher import launch
from experiments.lib import cli

BAR = 1.1
RANKS, WARM_UP, CALLS = 4, 3, 20
ON_RANKS = "--on-ranks"


@click.command(help=__doc__)
@click.option("--on-ranks", type=Path, hidden=True)
def command(on_ranks: Path | None) -> int:
    """Launch the ranks, or be one of them."""
    if on_ranks is not None:
        measure(on_ranks)
        return 0
    folder = Path("out/validation")
    folder.mkdir(parents=True, exist_ok=True)
    words = ("-m", "experiments.bench.validation", ON_RANKS, str(folder / "seconds"))
    launch(words, nproc_per_node=RANKS, timeout_s=300.0, check=True)
    beside, alone, free = map(float, (folder / "seconds").read_text().split())
    print(
        f"beside training {1e3 * beside:.1f} ms, the same plan with a model of its own {1e3 * alone:.1f}"
    )
    print(f"ratio {beside / alone:.3f}; the bar is {BAR}")
    print(f"with states of its own {1e3 * free:.1f} ms")
    return cli.MISSED if beside > BAR * alone else 0


def measure(result: Path) -> None:
    """Time both ways on this rank; rank 0 writes the medians, in seconds."""
    import oneflow as flow
    from oneflow import nn

    import autoddl
    from experiments.models import gpt
    from experiments.models.training import seed_weights

    class Evaluate(nn.Graph):
        def __init__(self, model: Any, loss: Any) -> None:
            super().__init__()
            self.model, self.loss = model, loss

        def build(self, x: Any, y: Any) -> Any:
            return self.loss(self.model(x), y)

    def fresh() -> tuple[Any, Any, Any]:
        graph, inputs = gpt.build(**gpt.SIZES["demo"], optimizer="adam")
        model = graph.model.to(nn.Module)
        seed_weights(model, 1)
        return graph, Evaluate(model, graph.loss), inputs

    train, evaluate, (x, y) = fresh()
    step = autoddl.optimize(train, x, y, mesh="2x2", budget=5.0).apply(train)
    (_, own, _), (_, other, _) = fresh(), fresh()
    alone = autoddl.optimize(evaluate, x, y).apply(own)
    free = autoddl.optimize(other, x, y, mesh="2x2").apply(other)
    runs: list[Callable[[], Any]] = [
        lambda: step.evaluate(evaluate, x, y), lambda: alone(x, y), lambda: free(x, y)
    ]  # fmt: skip
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(WARM_UP + CALLS):
        step(x, y)
        for which, run in enumerate(runs):
            flow.comm.barrier()
            begin = time.perf_counter()
            run().to_local().numpy()
            if number >= WARM_UP:
                seconds[which].append(time.perf_counter() - begin)
    if flow.env.get_rank() == 0:
        result.write_text(" ".join(str(statistics.median(each)) for each in seconds))


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.validation"))
