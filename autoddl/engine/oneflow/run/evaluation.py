"""Graphs beside the one that trains, over the same parameters: validation, inference.

Each is planned when it is first called with inputs of new shapes, with all parameters in the states in
which training has them. So nothing is copied, and nothing is out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import oneflow as flow

from autoddl.engine.interface import Replan, TrainingStep
from autoddl.engine.oneflow.capture.shadow import of_tensors
from autoddl.engine.oneflow.run.meeting import meet
from autoddl.errors import AutoDDLError
from autoddl.plan.value import PlanValue


class Evaluations:
    """The graphs that were called so far, with what runs them for inputs of each shape.

    `apply` makes what runs a plan of a graph.
    """

    def __init__(self, replan: Replan, apply: Callable[[PlanValue, Any], TrainingStep]) -> None:
        self._replan, self._apply = replan, apply
        # It keeps the objects whose ids are keys.
        self._graphs: dict[int, tuple[Any, flow.nn.Graph]] = {}
        self._runs: dict[tuple[int, str], TrainingStep] = {}

    def __call__(self, what: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a graph, or a module in evaluation mode.

        Raises:
            AutoDDLError: it is neither, or trains itself; as `optimize` and `apply`.
        """
        graph = self._graph(what)
        with _evaluating(what):
            key = id(what), shapes_of(args, kwargs)
            if key not in self._runs:
                meet("step.evaluate")
                self._runs[key] = self._apply(self._replan(graph, args, kwargs, None), graph)
            return self._runs[key](*args, **kwargs)

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        self._runs.clear()

    def _graph(self, what: Any) -> flow.nn.Graph:
        if id(what) not in self._graphs:
            self._graphs[id(what)] = what, _graph_of(what)
        return self._graphs[id(what)][1]


def _graph_of(what: Any) -> flow.nn.Graph:
    if isinstance(what, flow.nn.Graph):
        if what.config.training:
            raise AutoDDLError(
                f"evaluate: graph {what.name} has an optimizer; give one that only computes outputs"
            )
        return what
    if not isinstance(what, flow.nn.Module):
        raise AutoDDLError(
            f"evaluate: got {type(what).__name__}; give an oneflow.nn.Graph without an optimizer, or "
            "a module"
        )

    class Evaluation(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = what

        def build(self, *args: Any, **kwargs: Any) -> Any:
            return self.model(*args, **kwargs)

    return Evaluation()


@contextmanager
def _evaluating(what: Any) -> Iterator[None]:
    """Put a module into evaluation mode; how a graph's modules are traced is its user's."""
    modes = []
    if isinstance(what, flow.nn.Module):
        modes = [(module, module.training) for module in what.modules()]
        what.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def shapes_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return what tells calls apart that have to be planned each."""
    call = args, dict(kwargs)
    return repr(of_tensors(call, lambda _, tensor: f"{tuple(tensor.shape)} {tensor.dtype}"))
