"""Two halves of a batch in one program: the same numbers as the batch, by the rules' references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rewrites.halves import HALF, SUM, halves, second
from autoddl.sbp.rewrites.micro_batch import micro_batch
from tests.support.programs import mlp, tied, transformer

Array = npt.NDArray[Any]

PROGRAMS = {
    "mlp": mlp(8, (5, 7, 3), act="relu"),
    "transformer": transformer(layers=2, batch=4),
    "tied": tied(),
}


def drawn(program: Program) -> dict[str, Array]:
    """Return whole inputs and parameters; numbers of classes and words are small enough for any."""
    rng = np.random.default_rng(3)
    names = [*program.inputs, *(p.tensor for p in program.parameters)]
    found: dict[str, Array] = {}
    for tensor in map(program.tensor.__getitem__, names):
        whole = tensor.dtype.startswith("int")
        draw = rng.integers(0, 3, tensor.shape) if whole else rng.normal(size=tensor.shape)
        found[tensor.name] = np.asarray(draw)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_of_gradients_and_the_mean_loss_are_those_of_the_batch(name: str) -> None:
    whole = PROGRAMS[name]
    both = halves(micro_batch(whole, 2))
    values = drawn(whole)
    expected = run_program(whole, values)
    for tensor in whole.inputs:
        values[tensor], values[second(tensor)] = np.split(values[tensor], 2)
    found = run_program(both, values)
    assert whole.loss is not None
    losses = [found[whole.loss], found[second(whole.loss)]]
    np.testing.assert_allclose(np.mean(losses), expected[whole.loss], rtol=1e-9)
    assert losses[0] != losses[1]
    for old, new in zip(whole.parameters, both.parameters, strict=True):
        assert new.tensor == old.tensor and new.update == old.update is not None
        assert new.gradient in dict(both.op[new.update].inputs).values()
        gradients = found[str(new.gradient)], expected[str(old.gradient)]
        np.testing.assert_allclose(*gradients, rtol=1e-9, atol=1e-12)


def test_updates_come_once_and_all_else_twice() -> None:
    whole = PROGRAMS["mlp"]
    both = halves(micro_batch(whole, 2))
    once = [op.name for op in whole.ops if op.phase == "optimizer"]
    names = [op.name for op in both.ops]
    for op in whole.ops:
        assert names.count(op.name) == 1
        assert (second(op.name) in names) == (op.name not in once)
    assert sum(name.startswith(SUM) for name in names) == len(once)
    assert both.inputs == (*whole.inputs, *map(second, whole.inputs))
    assert both.outputs == (*whole.outputs, *map(second, whole.outputs))
    assert {t.name for t in both.tensors if t.role == "parameter"} == {
        p.tensor for p in whole.parameters
    }


def with_op(program: Program, op: Op, like: str) -> Program:
    """Return a program with an op that reads its first input's first reader."""
    made = (replace(program.tensor[like], name=name) for _, name in op.outputs)
    return replace(program, ops=(*program.ops, op), tensors=(*program.tensors, *made))


def test_the_second_half_draws_other_random_numbers() -> None:
    x = PROGRAMS["mlp"].inputs[0]
    mask = Op("drop", "random_mask_like", (("like_0", x),), (("out_0", "m"),), (("seed", 6),))
    both = halves(micro_batch(with_op(PROGRAMS["mlp"], mask, x), 2))
    assert both.op["drop"].attr["seed"] == 6 != both.op[second("drop")].attr["seed"]


def test_what_no_input_leads_to_is_there_once() -> None:
    w = PROGRAMS["mlp"].parameters[0].tensor
    cast = Op("cast", "cast", (("in_0", w),), (("out_0", "c"),), (("dtype", 2),))
    both = halves(micro_batch(with_op(PROGRAMS["mlp"], cast, w), 2))
    assert "cast" in both.op and second("cast") not in both.op


def test_two_gradients_of_one_op_have_two_sums() -> None:
    """CUDA's layer norm makes those of its weight and bias together."""
    half = micro_batch(PROGRAMS["mlp"], 2)
    gradients = [str(p.gradient) for p in half.parameters[:2]]
    makers = [half.producer[name] for name in gradients]
    joint = Op(
        "joint", "joint", tuple((f"in_{n}", makers[n].inputs[0][1]) for n in range(2)),
        tuple((f"out_{n}", name) for n, name in enumerate(gradients)), phase="backward",
    )  # fmt: skip
    last = max(map(half.ops.index, makers))
    ops = [
        joint if n == last else op for n, op in enumerate(half.ops) if n == last or op not in makers
    ]
    both = halves(replace(half, ops=tuple(ops)))
    assert len({op.name for op in both.ops}) == len(both.ops)
    summed = {op.inputs for op in both.ops if op.name.startswith(SUM)}
    assert {(("in_0", g), ("in_1", second(g))) for g in gradients} <= summed


def test_a_backward_pass_without_a_seed_is_refused() -> None:
    program = micro_batch(PROGRAMS["mlp"], 2)
    ops = tuple(replace(o, type="zeros_like") if o.type == "ones_like" else o for o in program.ops)
    with pytest.raises(AutoDDLError, match=r"duplex: nothing reads the loss .* as the seed"):
        halves(replace(program, ops=ops))


def test_a_graph_that_trains_nothing_has_two_halves_too() -> None:
    whole = PROGRAMS["mlp"]
    forward = replace(
        whole,
        ops=tuple(op for op in whole.ops if op.phase == "forward"),
        parameters=tuple(replace(p, gradient=None, update=None) for p in whole.parameters),
    )
    both = halves(micro_batch(forward, 2))
    assert len(both.ops) == 2 * len(forward.ops)
    assert sum(op.name.startswith(HALF) for op in both.ops) == len(forward.ops)
