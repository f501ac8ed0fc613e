"""Train with a generated script on all ranks, and note what is seen.

Arguments: a folder, and a case as JSON: {"name", "script", "weights", "data", "steps", "learning_rate"}.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import oneflow as flow


def main(folder: Path, case: dict[str, Any]) -> None:
    seen = train(case, folder)
    (folder / f"{case['name']}.rank{flow.env.get_rank()}.json").write_text(json.dumps(seen))


def train(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return losses (where this rank has them), order of computations, states, shapes of inputs."""
    spec = importlib.util.spec_from_file_location("generated", case["script"])
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    params = script.load_parameters(case["weights"])
    optimizer = script.make_optimizer(params, case["learning_rate"])
    staged = hasattr(script, "STAGE")
    first = next(script.batches(case["data"]))
    parts = [] if staged else [tuple(shard(tensor).shape) for tensor in first]
    flow.manual_seed(0)
    losses, stream = [], script.batches(case["data"])
    for _ in range(case["steps"]):
        if hasattr(script, "MICRO_BATCHES") and not staged:
            batch = [next(stream) for _ in range(script.MICRO_BATCHES)]
            loss = script.train_step(params, optimizer, batch)
        elif staged:
            loss = script.train_step(params, optimizer, next(stream))
        else:
            loss = script.train_step(params, optimizer, *next(stream))
        losses += [] if loss is None else [float(script.as_whole(loss))]
    script.save_checkpoint(str(folder / f"{case['name']}.trained"), params)
    return {
        "losses": losses,
        "stage": getattr(script, "STAGE", 0),
        "done": getattr(script, "DONE", []),
        "unplanned": getattr(script, "UNPLANNED", None),
        "parts": parts,
    }


def shard(tensor: flow.Tensor) -> flow.Tensor:
    """Return what this rank has of a tensor; scripts over shares have local ones."""
    return tensor.to_local() if tensor.is_global else tensor


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
