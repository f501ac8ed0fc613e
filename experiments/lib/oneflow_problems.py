"""Problems and requests for OneFlow, which experiments and tests plan for where nothing else is said."""

from __future__ import annotations

from functools import partial
from typing import Any

from autoddl.engine import engines
from autoddl.engine.oneflow.model.engine_model import COMPUTE_STREAM, ONEFLOW
from autoddl.perfmodel.redistribution import Redistributor
from autoddl.planner import request
from autoddl.planner.plan_options import Options
from autoddl.planner.request import Request
from autoddl.sbp.program import Program
from autoddl.search.network import builder
from autoddl.search.network.cost_network import CostNetwork, Setting

redistributor = partial(Redistributor, engine=ONEFLOW)
setting = partial(Setting, engine=ONEFLOW, streams=ONEFLOW.streams[0])


def build(*given: Any, compute_stream: bool = False, **more: Any) -> CostNetwork:
    """Return the problem of a program on a mesh under a profile; see `builder.build`."""
    streams = COMPUTE_STREAM if compute_stream else None
    return builder.build(*given, **{"engine": ONEFLOW, "streams": streams, **more})


def read(program: Program, ranks: tuple[int, int] | None = None, **options: Any) -> Request:
    """Return the request that options of `optimize` make; see `request.read`."""
    engine = engines.load("oneflow")
    more: dict[str, Any] = {
        name: options.pop(name) for name in ("engine", "accumulated") if name in options
    }
    more = {"engine": ONEFLOW, "ask": engine.signatures if engine.installed() else None, **more}
    return request.read(program, Options(**options), ranks, **more)
