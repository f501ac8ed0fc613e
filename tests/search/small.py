"""Problems with so few assignments that all of them can be looked at."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autoddl.sbp.mesh import Mesh
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.restriction import restricted as few
from experiments.lib import oneflow_problems as builder
from tests.support.clusters import cluster
from tests.support.programs import mlp


def one_layer(batch: int = 64, features: int = 64, out: int = 32, mesh: str = "2") -> CostNetwork:
    """A linear layer, its loss, backward and update: fourteen nodes."""
    program = mlp(batch, (features, out), optimizer="sgd", act="", bias=False)
    return builder.build(program, Mesh.parse(mesh), cluster())


def restricted(problem: CostNetwork, kept: Mapping[int, int]) -> CostNetwork:
    """The same problem with the first `kept[node]` choices of some nodes, one of each other node."""
    return few(problem, [np.arange(kept.get(i, 1)) for i in range(len(problem))])
