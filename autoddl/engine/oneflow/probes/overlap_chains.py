"""Ops beside boxings: both chains alone and together, each an nn.Graph, as plans run.

The graphs are made of the twin of a chain of boxings (probes.boxing_chains), of that chain, and of a
chain of matrix products of which neither needs the other:

    twin; boxings; twin and ops; boxings and ops; boxings and a quarter of the ops

What the twin takes is taken off all: launching, padding and the small kernels between boxings, which are
ops as well. Twice as many seconds of ops as of boxings are made, as a first look at both tells.
Perfmodel.calibration.overlaps says what follows from the times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oneflow as flow

from autoddl.calibrate.network.link_cases import OverlapCase, OverlapTiming
from autoddl.engine.oneflow.probes import boxing_chains
from autoddl.engine.oneflow.probes.boxing_chains import ChainProgram
from autoddl.engine.oneflow.probes.estimates import typical_of
from autoddl.engine.oneflow.probes.rank_groups import RankGrid
from autoddl.engine.oneflow.probes.stopwatch import (
    LEAST_PAIRS,
    Effort,
    Program,
    call,
    function_of,
    turns,
)

# Of the matrices: some 0.5 ms, shorter than most boxings; with half of it launches count.
_SIDE = 256
_LOOK = 16  # ops of the first look
_FEW, _LONGER = 4, 2.0  # shares: a quarter of the ops is half as long as the boxings
_LEAST_OPS, _MOST_OPS = 8, 400  # a graph of 1,000 ops takes seconds to compile
_MOST = 200


def timed(case: OverlapCase, cluster: RankGrid, limit_s: float) -> OverlapTiming:
    """Measure a case in about `limit_s` seconds, besides the making of its graphs."""
    chain = boxing_chains.chain(case.boxings, cluster)
    twin = boxing_chains.twin(case.boxings, cluster)
    alone = [_graph(program, 0, cluster) for program in (twin, chain)]
    look = turns([*alone, _graph(twin, _LOOK, cluster)], Effort(LEAST_PAIRS, 1, 0.0))
    boxings_s, ops_s = (typical_of(look[:, k] - look[:, 0]) for k in (1, 2))
    wanted = _LONGER * _LOOK * max(boxings_s, 0.0) / max(ops_s, 1e-6)
    few = int(np.clip(round(wanted), _LEAST_OPS, _MOST_OPS)) // _FEW
    many = few * _FEW
    beside = [
        _graph(twin, many, cluster),
        _graph(chain, many, cluster),
        _graph(chain, few, cluster),
    ]
    taken = turns([*alone, *beside], Effort(_MOST, 1, limit_s))
    boxings_s, ops_s, together_s, few_s = (
        typical_of(taken[:, k] - taken[:, 0]) for k in range(1, 5)
    )
    return OverlapTiming(case, len(taken), boxings_s, ops_s, together_s, ops_s / _FEW, few_s)


def _graph(program: ChainProgram, ops: int, cluster: RankGrid) -> Program:
    """Return a graph of a program and of so many ops, called once and checked."""
    mesh = flow.placement("cpu", cluster.ranks.ravel().tolist())
    x, one = (
        flow.tensor(array.astype(np.float32), placement=mesh, sbp=flow.sbp.broadcast)
        for array in (np.ones((_SIDE, _SIDE)), np.eye(_SIDE))
    )

    def body(x: Any, one: Any, *inputs: Any) -> Any:
        first = program.body(*inputs)
        for _ in range(ops):
            x = flow.matmul(x, one)
        return (first, x[:1, :1]) if ops else first

    function, inputs = function_of(body, "graph"), (x, one, *program.inputs)
    _, result = call(function, inputs)
    boxing_chains.check_unchanged("ops and boxings", result, program.expected)
    return function, inputs
