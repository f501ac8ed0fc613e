"""BatchNorm in problems: exact by default, the batch cut alike everywhere with permission."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.state import OWN, NdSbp
from autoddl.search.network.cost_network import TENSOR, CostNetwork
from autoddl.search.result import SearchOptions
from autoddl.search.solvers import coordinate
from experiments.lib import oneflow_problems as builder
from tests.search.objects import nodes_of, position_of
from tests.support.clusters import cluster

IMAGE, CHANNELS = (8, 4, 16, 16), (4,)
ALLOW = frozenset({"local_batchnorm"})
_ATTRS = (("axis", 1), ("epsilon", 1e-5), ("momentum", 0.9), ("training", True))
_VECTORS = ("beta", "gamma", "mean", "variance")


def program(layers: int = 1, *, shared: bool = False) -> Program:
    """Return x → BatchNorm → … → y and the gradients of the norms, from dy = x."""
    tensors = [Tensor("x", IMAGE, "float32", "input")]
    tensors += [
        Tensor(f"{v}{0 if shared else i}", CHANNELS, "float32", "buffer")
        for i in range(1 if shared else layers)
        for v in _VECTORS
    ]
    ops, x = [], "x"
    for i in range(layers):
        own = 0 if shared else i
        outputs = {"inv_variance_0": f"inv{i}", "mean_0": f"m{i}", "y_0": f"y{i}"}
        inputs = {
            "beta_0": f"beta{own}", "gamma_0": f"gamma{own}", "moving_mean_0": f"mean{own}",
            "moving_variance_0": f"variance{own}", "x_0": x,
        }  # fmt: skip
        ops.append(_op(f"norm{i}", "normalization", inputs, outputs))
        back = {"dy_0": f"y{i}", "gamma_0": f"gamma{own}", "inv_variance_0": f"inv{i}",
                "mean_0": f"m{i}", "x_0": x}  # fmt: skip
        made = {"beta_diff_0": f"db{i}", "dx_0": f"dx{i}", "gamma_diff_0": f"dg{i}"}
        ops.append(_op(f"back{i}", "normalization_grad", back, made))
        tensors += [Tensor(f"{n}{i}", IMAGE, "float32", "activation") for n in ("y", "dx")]
        tensors += [
            Tensor(f"{n}{i}", CHANNELS, "float32", "gradient") for n in ("inv", "m", "db", "dg")
        ]
        x = f"y{i}"
    variables = tuple(Parameter(t.name) for t in tensors if t.role == "buffer")
    return Program(tuple(ops), tuple(tensors), ("x",), (), variables, None)


def _op(name: str, type_: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Op:
    return Op(name, type_, tuple(inputs.items()), tuple(outputs.items()), _ATTRS)


def build(mesh: str = "2x2", *, layers: int = 1, shared: bool = False, **more: Any) -> CostNetwork:
    return builder.build(program(layers, shared=shared), Mesh.parse(mesh), cluster(), **more)


def choices(found: CostNetwork, op: str) -> tuple[Mapping[str, NdSbp], ...]:
    return nodes_of(found)[position_of(found)["op", op]].choices


def test_without_permission_every_device_sees_the_whole_batch() -> None:
    found = build()
    for op in ("norm0", "back0"):
        assert [str(c["x_0"]) for c in choices(found, op)] == ["(B, B)"]


def test_with_permission_the_batch_is_cut_and_statistics_differ() -> None:
    found = choices(build(allow=ALLOW), "norm0")
    assert {str(c["x_0"]): str(c["mean_0"]) for c in found} == {
        "(B, B)": "(B, B)", "(S0, B)": "(B*, B)", "(B, S0)": "(B, B*)", "(S0, S0)": "(B*, B*)",
    }  # fmt: skip
    assert all(c["moving_mean_0"] == c["mean_0"] == c["inv_variance_0"] for c in found)


def test_op_and_gradient_are_cut_alike_or_not_at_all() -> None:
    found = build(allow=ALLOW)
    forward, backward = (position_of(found)["op", name] for name in ("norm0", "back0"))
    free = [range(len(node.choices)) for node in nodes_of(found)]
    for point in itertools.product(*free):
        f, b = (nodes_of(found)[i].choices[point[i]] for i in (forward, backward))
        assert np.isfinite(found.cost_s(point)) == (f["mean_0"] == b["mean_0"])


def test_the_search_stays_among_what_can_be_executed() -> None:
    found = build(layers=3, allow=ALLOW, pin={"x": "S0,S0"})
    result = coordinate.search(found, SearchOptions(seed=0), restarts=8)
    assert np.isfinite(result.cost_s)
    plan = make_plan(found, result)
    for i in range(3):
        states = {plan.signatures[f"norm{i}"]["mean_0"], plan.signatures[f"back{i}"]["mean_0"]}
        assert states == {NdSbp((OWN, OWN))}
        assert plan.variables[f"mean{i}"] == plan.variables[f"variance{i}"] == NdSbp((OWN, OWN))
    exact = build(layers=3, pin={"x": "S0,S0"})
    assert result.cost_s < coordinate.search(exact, SearchOptions(seed=0), restarts=8).cost_s


def test_running_statistics_are_where_the_op_updates_them() -> None:
    found = build(layers=2)
    assert set(found.written) == {"mean0", "variance0", "mean1", "variance1"}
    assert ("parameter", "gamma0") in position_of(found)
    assert ("parameter", "mean0") not in position_of(found)
    plan = make_plan(found, found.result("first", (0,) * len(found)))
    assert set(plan.variables) == {f"{v}{i}" for v in _VECTORS for i in range(2)}
    assert all(r.tensor not in found.written for r in plan.redistributions)


def test_statistics_that_several_ops_update_stay_broadcast() -> None:
    found = build(layers=2, shared=True, allow=ALLOW)
    assert not found.written
    for op in ("norm0", "norm1"):
        assert [str(c["moving_mean_0"]) for c in choices(found, op)] == ["(B, B)"]
    node = nodes_of(found)[position_of(found)["parameter", "mean0"]]
    assert [str(c[TENSOR]) for c in node.choices] == ["(B, B)"]


def test_a_pin_of_running_statistics_binds_the_op() -> None:
    found = build(allow=ALLOW, pin={"mean0": "B,B"})
    assert [str(c["x_0"]) for c in choices(found, "norm0")] == ["(B, B)"]
    with pytest.raises(AutoDDLError, match="leaves op norm0 without a choice; the nearest is"):
        build(allow=ALLOW, pin={"mean0": "S0,B"})
