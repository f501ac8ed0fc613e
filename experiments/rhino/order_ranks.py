"""What ranks run: scripts of one model in stages, whose steps take turns in the same processes.

Started by experiments.rhino.order_study with a job, as JSON: the `scripts` by name, `sizes` of the
perceptron, `rounds`, and the `result`, a file in which rank 0 writes the seconds of each script's steps.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

from experiments import models
from experiments.models.training import seed_weights


def main(argv: Sequence[str]) -> None:
    """Run a job, every other round from behind."""
    job = json.loads(argv[0])
    graph, (x, y) = models.build("mlp", **job["sizes"])
    model = graph.model.to(flow.nn.Module)
    seed_weights(model, 1)
    with tempfile.TemporaryDirectory(prefix="autoddl-orders-") as folder:
        flow.save(model.state_dict(), f"{folder}/weights")
        np.savez(f"{folder}/inputs.npz", x=x.numpy(), y=y.numpy())
        steps = {
            name: _step(name, Path(file), f"{folder}/weights", f"{folder}/inputs.npz")
            for name, file in job["scripts"].items()
        }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-1, job["rounds"]):  # the first warms up
        for name in [*steps][:: -1 if number % 2 else 1]:
            flow.comm.barrier()
            begin = time.perf_counter()
            steps[name]()
            flow.comm.barrier()
            seconds[name] += [time.perf_counter() - begin] * (number >= 0)
    if flow.env.get_rank() == 0:
        Path(job["result"]).write_text(json.dumps(seconds))


def _step(name: str, file: Path, weights: str, arrays: str) -> Callable[[], Any]:
    """Return what trains a script one step further, always on the same batch."""
    spec = importlib.util.spec_from_file_location(f"generated_{name}", file)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    given, names = np.load(arrays), list(script.INPUTS)
    with tempfile.TemporaryDirectory(prefix="autoddl-orders-") as folder:
        np.savez(f"{folder}/inputs.npz", **dict(zip(names, (given["x"], given["y"]), strict=True)))
        params, batch = (
            script.load_parameters(weights), next(script.batches(f"{folder}/inputs.npz"))
        )  # fmt: skip
    optimizer = script.make_optimizer(params, 0.1)
    return lambda: script.train_step(params, optimizer, batch)


if __name__ == "__main__":
    main(sys.argv[1:])
