"""The lowering of small layouts, task by task."""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.engine.oneflow.model.memory.lowering import rank_tasks
from autoddl.engine.oneflow.model.memory.task_graph import BOXING, KINDS, RankTasks
from autoddl.sbp.layout import OUTPUT, Layout, Redistribution
from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.state import NdSbp
from tests.support.rows import lists

B, S, P = (NdSbp.parse(text) for text in ("B", "S0", "P"))
SHAPE = (64, 64)


def program_of(*sources: str) -> Program:
    """op1, op2 … each read one tensor and make t1, t2 …; "w" is a parameter, "x" the input."""
    ops = tuple(
        Op(f"op{n}", "tanh", (("x_0", source),), (("y_0", f"t{n}"),))
        for n, source in enumerate(sources, start=1)
    )
    tensors = [Tensor("x", SHAPE, "float32", "input"), Tensor("w", SHAPE, "float32", "parameter")]
    tensors += [Tensor(f"t{n + 1}", SHAPE, "float32", "activation") for n in range(len(ops))]
    return Program(ops, tuple(tensors), ("x",), (f"t{len(ops)}",), (Parameter("w"),), None)


def lowered(program: Program, moved: Sequence[Redistribution] = (), **states: NdSbp) -> RankTasks:
    """Lower a layout in which all is whole, but what `states` tell: of "op1_x" its operand x_0."""
    signatures = {
        op.name: {"x_0": states.get(f"{op.name}_x", B), "y_0": states.get(op.name, B)}
        for op in program.ops
    }
    held = states.get("w", B), states.get("x", B)
    layout = Layout.of(program, signatures, {"w": held[0]}, {"x": held[1]}, moved)
    return rank_tasks((2,), layout)


def shown(rank: RankTasks, program: Program) -> list[tuple[str, ...]]:
    """Each task: what its first result is, and what it reads."""
    names = [*(tensor.name for tensor in program.tensors), *(op.name for op in program.ops)]
    buffers = rank.buffers
    label = [
        f"{names[name]} {KINDS[kind]}"
        for name, kind in zip(buffers.name, buffers.kind, strict=True)
    ]
    first = rank.tasks.first
    return [
        (label[first[n]] if first[n] < first[n + 1] else "-", *(label[b] for b in reads))
        for n, reads in enumerate(lists(rank.tasks.reads))
    ]


def test_without_redistributions_tasks_are_inputs_ops_and_outputs() -> None:
    program = program_of("x", "t1")
    assert shown(lowered(program), program) == [
        ("x input",),
        ("w parameter",),
        ("t1 activation", "x input"),
        ("t2 activation", "t1 activation"),
        ("t2 output", "t2 activation"),
    ]


def test_a_boxing_and_an_identity_stand_before_the_first_reader() -> None:
    program = program_of("x", "t1", "t1")
    moved = [Redistribution("t1", (B,), (("op2", "x_0"), ("op3", "x_0")))]
    rank = lowered(program, moved, x=S, op1_x=S, op1=S)
    assert shown(rank, program)[2:] == [
        ("t1 activation", "x input"),
        ("t1 boxing", "t1 activation"),  # the collective, and what holds its result
        ("t1 boxing", "t1 boxing"),
        ("t2 activation", "t1 boxing"),
        ("t3 activation", "t1 boxing"),
        ("t3 output", "t3 activation"),
    ]
    assert rank.tasks.transfer.tolist() == [False, False, False, True, *[False] * 4]
    origin = rank.buffers.origin.tolist()
    assert origin == [0, 1, 2, 2, 4, 5, 6, 7]  # the collective's result is what t1 was


def test_what_a_variable_becomes_begins_with_an_identity() -> None:
    program = program_of("w")
    rank = lowered(program, [Redistribution("w", (B,), (("op1", "x_0"),))], w=S)
    assert shown(rank, program)[2:5] == [
        ("w boxing", "w parameter"),
        ("w boxing", "w boxing"),
        ("w boxing", "w boxing"),
    ]
    assert rank.tasks.transfer.tolist()[2:5] == [False, True, False]


def test_boxings_from_one_result_to_one_state_are_shared_and_identities_are_not() -> None:
    program = program_of("x", "t1", "t1")
    both = [
        Redistribution("t1", (B,), (("op2", "x_0"),)),
        Redistribution("t1", (B, S), (("op3", "x_0"),)),
    ]
    rank = lowered(program, both, x=P, op1_x=P, op1=P, op3_x=S)
    assert rank.tasks.transfer.sum() == 2  # P → B once, B → S0
    assert sum(kind == BOXING for kind in rank.buffers.kind) == 2 + 3


def test_what_the_graph_returns_in_another_state() -> None:
    program = program_of("x")
    rank = lowered(program, [Redistribution("t1", (B,), ((OUTPUT, ""),))], x=S, op1_x=S, op1=S)
    assert shown(rank, program)[3:] == [
        ("t1 boxing", "t1 activation"),
        ("t1 boxing", "t1 boxing"),
        ("t1 output", "t1 boxing"),
    ]


def test_a_boxing_that_comes_alone_waits_for_its_op() -> None:
    program = program_of("x", "t1", "t2", "x")
    late = [Redistribution("x", (B,), (("op4", "x_0"),), after="op3")]
    rank = lowered(program, late, x=S, op1_x=S)
    named = shown(rank, program)
    waiting = [n for n, row in enumerate(lists(rank.tasks.after)) if row]
    assert [named[n] for n in waiting] == [("x boxing", "x input")]  # an identity of its own
    assert [named[m][0] for n in waiting for m in lists(rank.tasks.after)[n]] == ["t3 activation"]
