"""What becomes of a model that is called outside of graphs when its parameters are spread over ranks."""

from __future__ import annotations

from typing import Any

import oneflow as flow

from autoddl.engine.oneflow.capture.shadow import modules
from autoddl.errors import AutoDDLError


def refuse_local_inputs(graph: flow.nn.Graph) -> None:
    """Let the graph's modules, when they are called eagerly with local tensors, say what to do.

    OneFlow would complain about inconsistent arguments of an op somewhere inside. Graphs call no hooks.
    """
    for root in modules(graph):
        for module in root.modules():
            own = any(True for _ in module.parameters())
            if own and _check not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_check)


def _check(module: flow.nn.Module, inputs: tuple[Any, ...]) -> None:
    """Refuse local tensors where a parameter is global."""
    if flow._oneflow_internal.lazy_mode.is_enabled():
        return
    local = any(isinstance(each, flow.Tensor) and not each.is_global for each in inputs)
    if local and next(module.parameters()).is_global:
        raise AutoDDLError(
            f"{type(module).__name__}: called with a local tensor, and a plan has spread its parameters "
            "over the ranks; call step.evaluate(model, x) on all of them, which takes local tensors"
        )
