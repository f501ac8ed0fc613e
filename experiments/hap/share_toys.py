"""Small random programs on small random clusters of two kinds, for what can be looked at in full.

toy(7): a forward pass of two linear layers on "2*fast + 1*slow", slow 3.4 times as slow
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec import structs

from autoddl.engine import engines
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.planner import request
from autoddl.planner.plan_options import Options
from autoddl.planner.request import Request
from autoddl.planner.uneven.share_vectors import share_meshes
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.shares import unit_vectors
from autoddl.search.exact import primal_dual as exact
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.rivals.hap import alternation
from experiments.lib.varied_profiles import of_two_kinds

LENGTHS = (24, 48, 60, 64, 72, 96, 120)  # times 8: what shares of all small sums divide, and few
MOST_UNITS = 8  # of the vectors that are tried in full


@dataclass(frozen=True)
class ShareToy:
    """A program, and a cluster of one axis under a profile of its kinds."""

    program: Program
    cluster: Cluster
    profile: Profile

    @cached_property
    def request(self) -> Request:
        """Return what the planner is asked: the least sum of compute and communication."""
        options = Options(cluster=self.cluster, profile=self.profile, objective="sum")
        return request.read(self.program, options, engine=engines.model(None))

    def problem(self, mesh: Mesh) -> CostNetwork:
        """Return the problem on a mesh."""
        return self.request.problem(mesh)

    @property
    def even(self) -> Mesh:
        """Return the mesh of equal shares."""
        return next(self.cluster.meshes(1))

    def meshes(self, most: int) -> Iterator[Mesh]:
        """Yield the meshes of all shares of so many units together, equal ones within a kind."""
        counts = Counter(self.cluster.kinds)
        for units in unit_vectors([*counts.values()], most):
            each = dict(zip(counts, units, strict=True))
            shares = tuple(each[kind] for kind in self.cluster.kinds)
            yield Mesh((replace(self.even.axes[0], shares=shares),))

    def optimum_s(self, mesh: Mesh) -> float:
        """Return the seconds of the best assignment on a mesh, proven."""
        return exact.search(self.problem(mesh)).cost_s

    def race_s(self) -> float:
        """Return the seconds of the best plan of the planner's candidates."""
        return min(map(self.optimum_s, (self.even, *share_meshes(self.request))))

    def hap(self, most: int = MOST_UNITS) -> alternation.Alternation:
        """Return what HAP's alternation finds."""
        return alternation.search(
            self.problem, self.even, self.profile.devices, self.cluster.kinds, most_units=most
        )


def toy(seed: int) -> ShareToy:
    """Return the toy of a seed; its compute and communication are of one size."""
    rng = np.random.default_rng((55, seed))
    fast, slow = (int(n) for n in rng.integers(1, 3, 2))
    base = of_two_kinds(profiles.load("v100-8x"), float(rng.uniform(1.3, 5)))
    factor = float(10 ** rng.uniform(-2.5, 0.5))
    links = tuple(
        structs.replace(
            link, alpha_s=0.1 * link.alpha_s, beta_s_per_byte=factor * link.beta_s_per_byte
        )
        for link in base.links
    )
    profile = structs.replace(base, links=links)
    cluster = Cluster.parse(f"{fast}*fast + {slow}*slow", profile.levels)
    widths = [8 * int(rng.choice(LENGTHS)) for _ in range(int(rng.integers(3, 5)))]
    return ShareToy(_forward(widths), cluster, profile)


def _forward(widths: list[int]) -> Program:
    """Return the forward pass of linear layers between these widths, the first of which is the batch."""
    batch, features, *outs = widths
    tensors, ops, parameters = [Tensor("x", (batch, features), "float32", "input")], list[Op](), []
    for number, out in enumerate(outs):
        inputs = tensors[-1]
        weight = Tensor(f"w{number}", (out, inputs.shape[1]), "float32", "parameter")
        made = Tensor(f"y{number}", (batch, out), "float32", "activation")
        attrs = (("alpha", 1.0), ("transpose_a", False), ("transpose_b", True))
        operands = (("a_0", inputs.name), ("b_0", weight.name))
        ops.append(Op(f"matmul{number}", "matmul", operands, (("out_0", made.name),), attrs))
        parameters.append(Parameter(weight.name))
        tensors += [weight, made]
    return Program(
        tuple(ops), tuple(tensors), ("x",), (tensors[-1].name,), tuple(parameters), None, "cuda"
    )
