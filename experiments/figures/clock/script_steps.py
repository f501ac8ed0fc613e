"""Scripts that codegen has written, as steps that are called like those of a graph."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow

ScriptStep = Callable[..., flow.Tensor]


def script_step(
    file: Path, model: flow.nn.Module, inputs: tuple[flow.Tensor, ...], learning_rate: float
) -> tuple[ScriptStep, tuple[Any, ...]]:
    """Return the training step of a script and what it is called with: this rank's part of the inputs.

    It begins with the weights of a model, which is on every rank, and returns the whole loss.
    """
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with tempfile.TemporaryDirectory(prefix="autoddl-script-") as folder:
        weights, arrays = f"{folder}/weights", f"{folder}/inputs.npz"
        flow.save(model.state_dict(), weights)
        names = zip(script.INPUTS, inputs, strict=True)
        np.savez(arrays, **{name: tensor.numpy() for name, tensor in names})
        parameters, batch = script.load_parameters(weights), next(script.batches(arrays))
    optimizer = script.make_optimizer(parameters, learning_rate)

    def step(*mine: Any) -> flow.Tensor:
        return flow.tensor(script.as_whole(script.train_step(parameters, optimizer, *mine)))

    return step, tuple(batch)
