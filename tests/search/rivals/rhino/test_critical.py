"""Rhino's critical nodes: times by hand, and of a model's step."""

from __future__ import annotations

from autoddl.sbp.program import Op, Program, Tensor
from autoddl.search.rivals.rhino.critical import critical, times
from tests.support.programs import mlp


def program_of(*ops: tuple[str, str, tuple[str, ...]]) -> Program:
    """A program of ops (name, type, the ops whose results it reads)."""
    made = [Op(name, kind, tuple((f"in_{i}", f"{r}_out") for i, r in enumerate(reads)),
               (("out_0", f"{name}_out"),)) for name, kind, reads in ops]  # fmt: skip
    tensors = tuple(Tensor(f"{name}_out", (4, 4), "float32", "activation") for name, _, _ in ops)
    return Program(tuple(made), tensors, (), (), (), None)


def test_times_are_those_of_unit_ops() -> None:
    program = program_of(
        ("a", "matmul", ()), ("b", "relu", ("a",)), ("c", "matmul", ("a",)), ("d", "matmul", ("a", "b")),
        ("e", "relu", ("d",)), ("f", "matmul", ("e",)),
    )  # fmt: skip
    earliest, latest = times(program)
    assert earliest.tolist() == [0, 1, 1, 2, 3, 4]
    assert latest.tolist() == [0, 1, 4, 2, 3, 4]
    assert [program.ops[i].name for i in critical(program)] == ["a", "d", "f"]


def test_of_a_step_the_products_through_which_activations_and_their_gradients_flow_are_critical() -> (
    None
):
    program = mlp(64, (8, 16, 8, 4), bias=False)
    kinds = [program.ops[i].type for i in critical(program)]
    assert set(kinds) == {"matmul"}
    products = sum(op.type == "matmul" for op in program.ops)
    # three forward, two backward through activations, and the last that makes a gradient of a weight
    assert products == 8 and len(kinds) == 6
