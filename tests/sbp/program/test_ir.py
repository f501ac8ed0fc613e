"""Programs: fingerprints and look-ups."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from typing import Any

from autoddl.sbp.program import Op, Parameter, ParameterGroup, Program, Tensor, freeze
from tests.support.programs import transformer


def small_program() -> Program:
    """Return relu(x w) and the update of w, with attributes of every kind."""
    attrs = (("alpha", 1.0), ("shape", (2, (3, 4))), ("transpose_b", False))
    matmul = Op("fc", "matmul", (("a_0", "x"), ("b_0", "w")), (("out_0", "h"),), attrs, module="fc")
    relu = Op("act", "relu", (("x_0", "h"),), (("y_0", "y"),))
    update = Op("opt", "sgd_update", (("model_0", "w"), ("model_diff_0", "x")), (), (), "optimizer")
    return Program(
        ops=(matmul, relu, update),
        tensors=(
            Tensor("x", (4, 8), "float32", "input"),
            Tensor("w", (8, 2), "float32", "parameter"),
            Tensor("w-m", (8, 2), "float32", "state"),
            Tensor("buffer", (2,), "float32", "buffer"),
            Tensor("h", (4, 2), "float32", "activation"),
            Tensor("y", (4, 2), "float16", "activation"),
        ),
        inputs=("x",),
        outputs=("y",),
        parameters=(Parameter("w", "x", ("w-m",), "opt"), Parameter("buffer")),
        loss="y",
    )


def changed(**attrs: Any) -> Program:
    program = small_program()
    op = replace(program.ops[0], attrs=tuple(sorted({**program.ops[0].attr, **attrs}.items())))
    return replace(program, ops=(op, *program.ops[1:]))


def test_look_ups() -> None:
    program = small_program()
    matmul, relu, update = program.ops
    assert program.op["act"] is relu
    assert program.producer == {"h": matmul, "y": relu}
    assert program.consumers["x"] == ((matmul, "a_0"), (update, "model_diff_0"))
    assert program.shapes(matmul) == {"a_0": (4, 8), "b_0": (8, 2), "out_0": (4, 2)}
    assert matmul.attr["shape"] == (2, (3, 4))
    assert matmul.operands == (("a_0", "x"), ("b_0", "w"), ("out_0", "h"))
    y = program.tensor["y"]
    assert (y.elements, y.item_bytes, y.size_bytes) == (8, 2, 16)
    assert Tensor("loss", (), "float32", "loss").elements == 1


def test_fingerprint_follows_the_graph() -> None:
    program = small_program()
    x = program.tensors[0]
    others = [
        changed(alpha=2.0),
        changed(alpha=1),  # an integer is another attribute
        changed(shape=(2, (3, 5))),
        replace(program, tensors=(replace(x, shape=(8, 8)), *program.tensors[1:])),
        replace(program, tensors=(replace(x, dtype="float64"), *program.tensors[1:])),
        replace(program, ops=program.ops[:2]),
        replace(program, device="cuda"),
    ]
    prints = [other.fingerprint for other in others]
    assert len({program.fingerprint, *prints}) == len(others) + 1
    assert program.fingerprint == small_program().fingerprint
    assert len(program.fingerprint) == 16


def test_fingerprints_are_digests_of_what_ops_and_tensors_have() -> None:
    """Saved plans hold them, so they stay what they are."""
    program = small_program()
    odd = Op('a "source", ä', "ones", (), (), (("value", 1), ("text", "'\\n\"")))
    same = Op("a", "ones", (), (), (("value", 1.0), ("text", "'\\n\"")))
    names = Tensor("x ä", (), "float32", "input"), Tensor('x"', (), "float32", "input")
    bare = replace(program, ops=(), tensors=(), inputs=(), outputs=())
    more = replace(program, ops=(*program.ops, odd, same), tensors=(*names, *program.tensors))
    for case in (program, more, bare, transformer()):
        assert case.fingerprint == plain_digest(case, [repr(op.attrs) for op in case.ops])
        assert case.structure == plain_digest(case)


def plain_digest(program: Program, *columns: list[str]) -> str:
    rows = sorted(zip(program.ops, *columns, strict=True), key=lambda row: row[0].name)
    ops = [row[0] for row in rows]
    made = [name for op in ops for _, name in op.outputs]
    tensors = sorted(program.tensors, key=lambda t: (t.name in made, t.name))
    tensors.sort(key=lambda t: made.index(t.name) if t.name in made else -1)
    told = [
        [json.dumps((tensor.shape, tensor.dtype)) for tensor in tensors],
        [op.type for op in ops],
        [operand for op in ops for operand, _ in op.inputs],
        [operand for op in ops for operand, _ in op.outputs],
        *([row[1] for row in rows] for _ in columns),
    ]
    lines = ["\n".join(item.name for item in items) for items in (ops, tensors)]
    which = [sorted(set(texts)) for texts in told]
    text = json.dumps([program.device, *lines, program.inputs, program.outputs, *which])
    numbers: list[int] = []
    for ends in ([op.inputs for op in ops], [op.outputs for op in ops]):
        numbers += map(len, ends)
        numbers += [[t.name for t in tensors].index(name) for end in ends for _, name in end]
    for texts, different in zip(told, which, strict=True):
        numbers += map(different.index, texts)
    data = text.encode() + struct.pack(f"<{len(numbers)}q", *numbers)
    return hashlib.sha256(data).hexdigest()[:16]


def test_equal_attributes_of_other_types_are_others() -> None:
    columns = replace(changed(alpha=1), ops=changed(alpha=1).ops + small_program().ops).columns
    assert columns.attribute.tolist() == [0, 1, 1, 2, 1, 1]
    assert [dict(attrs).get("alpha") for attrs in columns.attributes] == [1, None, 1.0]
    assert columns.kind[0] != columns.kind[3]


def test_fingerprint_ignores_the_order_of_ops() -> None:
    program = small_program()
    assert replace(program, ops=program.ops[::-1]).fingerprint == program.fingerprint


def test_fingerprint_ignores_seeds() -> None:
    one, other, rate = changed(seed=1), changed(seed=2), changed(seed=1, rate=0.5)
    assert one.fingerprint == other.fingerprint != rate.fingerprint
    assert one != other


def test_structure_leaves_attributes_out() -> None:
    program = small_program()
    x, fc = program.tensors[0], program.ops[0]
    others = [
        replace(program, tensors=(replace(x, shape=(8, 8)), *program.tensors[1:])),
        replace(program, tensors=(replace(x, dtype="float64"), *program.tensors[1:])),
        replace(program, ops=program.ops[:2]),
        replace(program, ops=(replace(fc, type="batch_matmul"), *program.ops[1:])),
        replace(program, ops=(replace(fc, name="other"), *program.ops[1:])),
        replace(program, ops=(replace(fc, inputs=fc.inputs[::-1]), *program.ops[1:])),
        replace(program, outputs=("h",)),
        replace(program, device="cuda"),
    ]
    assert len({program.structure, *(o.structure for o in others)}) == len(others) + 1
    assert changed(alpha=2.0).structure == program.structure != program.fingerprint
    assert replace(program, ops=program.ops[::-1]).structure == program.structure
    assert len(program.structure) == 16


def test_freeze() -> None:
    assert freeze([1, [2, (3, [4])], "ab"]) == (1, (2, (3, (4,))), "ab")


def test_ops_of_one_kind_differ_in_names_only() -> None:
    program = transformer(layers=2)
    alike: dict[object, set[int]] = {}
    for op, kind in zip(program.ops, program.columns.kind.tolist(), strict=True):
        tensors = [(o, program.tensor[t]) for o, t in op.operands]
        what = op.type, op.attrs, len(op.inputs), tuple((o, t.shape, t.dtype) for o, t in tensors)
        alike.setdefault(what, set()).add(kind)
    assert all(len(kinds) == 1 for kinds in alike.values())
    assert len({kind for kinds in alike.values() for kind in kinds}) == len(alike)
    assert len(alike) < len(program.ops) / 2


def waits(program: Program) -> set[tuple[str, str]]:
    """Which ops come after which others, though they read nothing of them."""
    names = [op.name for op in program.ops]
    return {(names[a], names[b]) for a, b in zip(*program.precedence, strict=True)}


def test_updates_come_after_those_that_read_the_parameter() -> None:
    assert waits(small_program()) == {("fc", "opt")}


def test_updates_by_clipped_gradients_come_after_all_gradients() -> None:
    """What reads all gradients is in no program: the norm of a group, what finds values not finite."""

    def backward(number: int) -> Op:
        return Op(f"g{number}", "relu", (("x_0", "x"),), (("y_0", f"d{number}"),), phase="backward")

    def update(number: int) -> Op:
        inputs = (("model_0", f"w{number}"), ("model_diff_0", f"d{number}"))
        return Op(f"u{number}", "sgd_update", inputs, (), phase="optimizer")

    given = [Tensor("x", (4,), "float32", "input")]
    given += [Tensor(f"w{n}", (4,), "float32", "parameter") for n in range(4)]
    made = [Tensor(f"d{n}", (4,), "float32", "gradient") for n in range(4)]
    state = Tensor("count", (1,), "int64", "system")
    program = Program(
        ops=(*map(backward, range(4)), *map(update, range(4))),
        tensors=(*given, *made, state),
        inputs=("x",), outputs=(),
        parameters=tuple(Parameter(f"w{n}", f"d{n}", (), f"u{n}") for n in range(4)),
        loss=None,
    )  # fmt: skip
    assert waits(program) == set()
    decayed = ParameterGroup(("w0",), 0.1, weight_decay=0.1)
    clipped = ParameterGroup(("w1", "w2", "w3"), 0.1, clip=(1.0, 2.0))
    grouped = replace(program, groups=(decayed, clipped))
    of_group = {("g1", "u1"), ("g2", "u1"), ("g3", "u1"), ("u1", "u2"), ("u2", "u3")}
    assert waits(grouped) == of_group
    skipped = tuple(
        replace(op, inputs=(*op.inputs, ("skip_if_0", "count"))) if op.name == "u0" else op
        for op in program.ops
    )
    assert waits(replace(program, ops=skipped)) == {("g0", "u0")}


def test_clipped_updates_that_may_be_skipped_have_one_order() -> None:
    """A group that lists its parameters in another order than the program makes no circle."""
    names = ("w0", "w1")
    updates = [
        Op(f"u{n}", "sgd_update", (("model_0", n), ("model_diff_0", f"d{n}"), ("skip_if_0", "count")),
           (), phase="optimizer")
        for n in names
    ]  # fmt: skip
    tensors = [Tensor(n, (4,), "float32", "parameter") for n in names]
    tensors += [Tensor(f"d{n}", (4,), "float32", "input") for n in names]
    program = Program(
        ops=tuple(updates), tensors=(*tensors, Tensor("count", (1,), "int64", "system")),
        inputs=tuple(f"d{n}" for n in names), outputs=(),
        parameters=tuple(Parameter(n, f"d{n}", (), f"u{n}") for n in names), loss=None,
        groups=(ParameterGroup(names[::-1], 0.1, clip=(1.0, 2.0)),),
    )  # fmt: skip
    assert waits(program) == {("uw0", "uw1")}
