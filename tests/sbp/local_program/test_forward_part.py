"""Gradients by duals: each dual is the transpose, and sums of ranks' slopes are the gradient."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.boxing import boxing
from autoddl.sbp.local_program.forward_part import ForwardPart, dual, dual_state, forward_part
from autoddl.sbp.local_program.instructions import Communication, Computation, LocalProgram
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_program import communicate, execute
from autoddl.sbp.numpy_oracle.simulated_tensors import Array, Locals, assemble, shard
from autoddl.sbp.program import Tensor
from autoddl.sbp.shards import all_states
from autoddl.sbp.state import NdSbp
from tests.support.local_programs import MODELS, local_program, whole_values
from tests.support.simulated import run_program

MESHES = ("2:3/1", "3:2/1/1", "2:3/1x2", "2x2:3/1")


@pytest.mark.parametrize("text", (*MESHES, "2x2"))
def test_duals_are_transposed(text: str) -> None:
    """Σ of ranks (boxing of x) · y = Σ of ranks x · (dual of y), for every boxing."""
    mesh, tensor = Mesh.parse(text), Tensor("x", (8, 16), "float32", "activation")
    states = [*all_states(tensor.shape, mesh.cuts, any_order=True)]
    rng, count = np.random.default_rng(0), 0
    for before, after in itertools.product(states, states):
        if boxing(before, after, tensor.shape, mesh.cuts) is None:
            continue
        there = Communication.of(tensor, before, after, mesh)
        back = dual(tensor, there, mesh)
        x = [rng.normal(size=there.reads.shape(rank)) for rank in range(mesh.size)]
        y = [rng.normal(size=there.establishes.shape(rank)) for rank in range(mesh.size)]
        forward = sum(np.vdot(a, b) for a, b in zip(sent(there, x), y, strict=True))
        backward = sum(np.vdot(a, b) for a, b in zip(x, sent(back, y), strict=True))
        assert forward == pytest.approx(backward), (before, after)
        count += 1
    assert count >= 12


def sent(each: Communication, locals_: Sequence[Array]) -> Locals:
    ranks = [{each.reads.property: array} for array in locals_]
    communicate(each, ranks)
    return [rank[each.establishes.property] for rank in ranks]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("seed", range(3))
def test_slopes_of_ranks_make_the_gradient(mesh: str, seed: int) -> None:
    """By finite differences in what each rank holds of a bias, behind which are other layers."""
    local = local_program("mlp of 8", mesh, seed)
    part, values = forward_part(local), whole_values(local.program, np.random.default_rng(0))
    expected = run_program(local.program, values)
    for name in ("model.fc1.bias", "model.fc2.bias"):
        state = next(h.property.state for h in local.given if h.property.tensor == name)
        found = slopes(local, part, values, name)
        for each in part.gradients[name]:
            found = sent(each, found)
        whole = assemble(found, state, local.mesh.cuts, (8,))
        gradient = local.program.parameter[name].gradient
        assert gradient is not None and np.abs(expected[gradient]).max() > 1e-3
        np.testing.assert_allclose(whole, expected[gradient], atol=1e-6)


def slopes(local: LocalProgram, part: ForwardPart, values: dict[str, Array], name: str) -> Locals:
    """Return by rank how the loss grows with each element that the rank holds of a tensor."""
    rng = np.random.default_rng(1)
    forward = replace(local, instructions=part.instructions)
    held = {h.property.tensor: h.property.state for h in local.given}
    given = {n: shard(values[n], state, local.mesh.cuts, rng) for n, state in held.items()}

    def loss(rank: int, index: tuple[int, ...], change: float) -> float:
        changed = [array.copy() for array in given[name]]
        changed[rank][index] += change
        losses = execute(forward, {**given, name: changed})[part.loss]
        return sum(float(a.item()) * seed for a, seed in zip(losses, part.seeds, strict=True))

    found = [np.zeros(array.shape) for array in given[name]]
    for rank, array in enumerate(found):
        for index in np.ndindex(array.shape):
            array[index] = (loss(rank, index, 1e-5) - loss(rank, index, -1e-5)) / 2e-5
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_forward_part_is_complete(name: str) -> None:
    local = local_program(name, "2:3/1x2", 1)
    part = forward_part(local)
    ops = {each.op for each in part.instructions if isinstance(each, Computation)}
    assert ops == {op.name for op in local.program.ops if op.phase == "forward"}
    trained = {p.tensor for p in local.program.parameters if p.update is not None}
    assert set(part.gradients) == trained <= part.differentiated
    assert part.differentiated.isdisjoint(local.program.inputs)
    there = {held.property for held in local.given}
    for each in part.instructions:
        held = [each.reads] if isinstance(each, Communication) else [h for _, h in each.reads]
        assert {h.property for h in held} <= there
        made = (
            [each.establishes]
            if isinstance(each, Communication)
            else [h for _, h in each.establishes]
        )
        there |= {h.property for h in made}
    assert part.loss in there
    for number, back in part.duals.items():
        each = part.instructions[number]
        assert isinstance(each, Communication) and back.axes == each.axes


def test_what_is_not_linear_has_no_dual() -> None:
    assert dual_state(NdSbp.parse("S0,B")) == NdSbp.parse("S0,P")
    with pytest.raises(AutoDDLError, match=r"P\(max\) has no gradient"):
        dual_state(NdSbp.parse("P(max)"))
