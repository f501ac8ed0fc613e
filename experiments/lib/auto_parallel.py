"""OneFlow's built-in auto-parallel on a graph of one device, beside the same graph without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import oneflow as flow

from autoddl.engine.oneflow.capture.shadow import shadow
from autoddl.engine.oneflow.run.global_tensors import make_global
from autoddl.sbp.state import broadcast


def on_mesh(graph: Any, inputs: Sequence[Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Put a graph's parameters on CPU ranks of a mesh, whole on each; return the inputs there."""
    placement = flow.placement("cpu", np.arange(int(np.prod(shape))).reshape(shape).tolist())
    make_global(graph, lambda _: placement, lambda _: broadcast(len(shape)))
    whole = [flow.sbp.broadcast] * len(shape)
    return tuple(x.to_global(placement=placement, sbp=whole) for x in inputs)


def auto_parallel(graph: Any) -> Any:
    """Return a graph on a mesh as OneFlow plans it when it is built; states that it has are ignored.

    It is a copy, whose optimizer has the parameters that are on the mesh.
    """
    tuned = shadow(graph)
    tuned.config.enable_auto_parallel(True)
    tuned.config.enable_auto_parallel_ignore_user_sbp_config(True)
    return tuned
