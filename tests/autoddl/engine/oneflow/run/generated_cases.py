"""The training cases as generated scripts, with the weights and batches that these read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow
from oneflow.nn.graph.util import ArgsTree

import autoddl
from autoddl.codegen.script_facts import inputs_of
from tests.autoddl.engine.oneflow.run.training_cases import CASES, graph_of


def write_scripts(folder: Path, steps: int) -> dict[str, str]:
    """Write scripts, weights and batches of all cases; return why some have no script, by case."""
    reasons = {name: _write(folder, name, steps) for name in CASES}
    return {name: reason for name, reason in reasons.items() if reason}


def _write(folder: Path, name: str, steps: int) -> str:
    """Write a case's script, weights and batches; return why there is none, "" if there is one."""
    graph, case = graph_of(CASES[name]), CASES[name]
    batches = [case.batch(np.random.default_rng(step)) for step in range(steps)]
    args, kwargs = batches[0]
    # ZeRO cuts every gradient and state; plans for accumulation are searched
    search = {} if name.startswith("accumulated") else {"search": "ZeRO 2"}
    plan = autoddl.optimize(graph, *args, mesh="2", **search, **kwargs)
    try:
        plan.codegen(folder / f"{name}.py")
    except autoddl.AutoDDLError as error:
        return str(error)
    flow.save(graph.model.to(flow.nn.Module).state_dict(), str(folder / f"{name}.weights"))
    arrays = [_arrays(batch) for batch in batches]
    inputs = [item.name for item in inputs_of(plan.program)]
    together = {n: np.concatenate([step[i] for step in arrays]) for i, n in enumerate(inputs)}
    np.savez(folder / f"{name}.npz", **together)
    return ""


def _arrays(batch: Any) -> list[Any]:
    """Return what a graph is called with as arrays, in its inputs' order."""
    tree = ArgsTree(batch, True, "input", None)
    values = (node.value() for node in tree.iter_nodes())
    return [value.numpy() for value in values if isinstance(value, flow.Tensor)]
