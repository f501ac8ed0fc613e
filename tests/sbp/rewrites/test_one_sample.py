"""What changes where a micro-batch has one sample: types and names of ops, and which vanish."""

from __future__ import annotations

from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.rewrites.one_sample import as_traced
from tests.support.programs import Builder, add, linear, mlp, mse, scaled


def types(program: Program) -> dict[str, str]:
    return {op.name: op.type for op in program.ops if op.phase != "optimizer"}


def test_nothing_changes_above_one_sample() -> None:
    whole, part = mlp(8), mlp(2)
    assert as_traced(whole, part) is part


def test_sums_over_one_sample_become_reshapes() -> None:
    whole, part = mlp(8), micro_batch(mlp(8), 8)
    sums = {name for name, kind in types(whole).items() if kind == "reduce_sum_like"}
    expected = {
        n.replace("reduce_sum_like", "reshape_like") if n in sums else n for n in types(whole)
    }
    assert len(sums) == 2
    assert set(types(part)) == expected
    for name in sums:
        op = part.op[name.replace("reduce_sum_like", "reshape_like")]
        old = dict(whole.op[name].inputs)
        assert op.inputs == (("in_0", old["x_0"]), ("like_0", old["like_0"]))
        assert op.outputs == (("out_0", f"{op.name}/out_0"),)
        assert op.attrs == ()
    for parameter in part.parameters:
        assert part.tensor[str(parameter.gradient)].shape == part.tensor[parameter.tensor].shape
        assert (
            part.op[str(parameter.update)].inputs.count(("model_diff_0", parameter.gradient)) == 1
        )


def test_other_sums_lose_the_dim() -> None:
    g = Builder()
    x, target = g.input((4, 3, 5)), g.input((4, 3, 5))
    part = micro_batch(g.program(mse(g, linear(g, x, 5), target), "sgd"), 4)
    (total,) = (op for op in part.ops if op.type == "reduce_sum_like")
    assert total.attr["axis"] == (1,)


def one_output(batch: int) -> Program:
    """Return a linear layer with one output, whose mean squared error is that of `batch` numbers."""
    g = Builder()
    x, target = g.input((batch, 3)), g.input((batch, 1))
    with g.module("model"):
        y = linear(g, x, 1, bias=False)
    return g.program(mse(g, y, target), "sgd")


def test_means_of_one_number_vanish() -> None:
    whole, part = one_output(4), micro_batch(one_output(4), 4)
    assert [kind for kind in types(whole).values() if kind != "scalar_mul"] == [
        *types(part).values()
    ]
    assert [*types(whole)][3:6] == ["reduce_sum-3", "scalar_mul-4", "ones_like-5"]
    assert [*types(part)][3:6] == ["reduce_sum-3", "ones_like-4", "broadcast_like-5"]
    assert part.loss == "reduce_sum-3/output_tensor_0" and part.outputs == (part.loss,)
    assert part.tensor[part.loss].role == "loss"
    assert part.op["ones_like-4"].inputs == (("like_0", part.loss),)
    assert dict(part.op["broadcast_like-5"].inputs)["x_0"] == "ones_like-4/out_0"
    assert Program.from_json(part.to_json()) == part


def test_equal_shapes_are_added_without_repeating() -> None:
    def program(batch: int) -> Program:
        g = Builder()
        x, target = g.input((batch, 4)), g.input((batch, 4))
        return g.program(mse(g, add(g, x, g.parameter("row", (1, 4))), target), "sgd")

    part = micro_batch(program(2), 2)
    (first,) = (op for op in part.ops if op.type == "add_n")
    assert first.name == "add_n-0"
    assert first.inputs == (("in_0", "input.0.0"), ("in_1", ".row"))
    assert "broadcast_add" not in types(part).values()
    # The sum's result would have the shape of its input.
    assert not {"reduce_sum_like", "reshape_like"} & set(types(part).values())
    (row,) = part.parameters
    assert row.gradient == part.op[[*types(part)][-1]].outputs[0][1]


def test_several_ops_vanish_in_a_row() -> None:
    g = Builder()
    x = g.op("relu", "x_0 -> y_0", [g.input((2, 1))], (2, 1))
    g.phase = "backward"
    total = g.op(
        "reduce_sum", "input_tensor_0 -> output_tensor_0", [x], (1, 1), axis=(0,), keepdims=True
    )
    y = g.op("relu", "x_0 -> y_0", [scaled(g, total, 1 / 2)], (1, 1))
    part = micro_batch(
        Program(tuple(g.ops), tuple(g.tensors.values()), tuple(g.inputs), (y,), (), None), 2
    )
    assert types(part) == {"relu-0": "relu", "relu-1": "relu"}
    assert part.op["relu-1"].inputs == (("x_0", "relu-0/y_0"),)
    assert part.outputs == ("relu-1/y_0",)
