"""Columns of a program: against its ops and tensors, one by one."""

from __future__ import annotations

import pytest

from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.program.columns import Operands
from tests.support.programs import mlp, tied, transformer

PROGRAMS = {"mlp": mlp, "tied": tied, "transformer": transformer}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]()


def _pairs(program: Program, operands: Operands, op: int) -> tuple[tuple[str, str], ...]:
    ends = range(operands.begin[op], operands.begin[op + 1])
    names, tensors = program.columns.operands, program.tensors
    return tuple((names[operands.name[i]], tensors[operands.tensor[i]].name) for i in ends)


def test_columns_say_what_ops_say(program: Program) -> None:
    columns = program.columns
    for index, op in enumerate(program.ops):
        found = Op(
            op.name,
            columns.types[columns.type[index]],
            _pairs(program, columns.inputs, index),
            _pairs(program, columns.outputs, index),
            op.attrs,
            str(columns.phase[index]),
            columns.modules[columns.module[index]],
        )
        assert found == op
        assert columns.place[op.name] == index
    assert columns.inputs.op.tolist() == [i for i, op in enumerate(program.ops) for _ in op.inputs]


def test_columns_say_what_tensors_say(program: Program) -> None:
    columns = program.columns
    for index, tensor in enumerate(program.tensors):
        shape, dtype = columns.forms[columns.form[index]]
        role = columns.roles[columns.role[index]]
        assert Tensor(tensor.name, shape, dtype, role) == tensor
        assert columns.number[tensor.name] == index
        assert columns.size_bytes[index] == tensor.size_bytes
        makers = [(i, k) for i, op in enumerate(program.ops) for k, (_, t) in enumerate(op.outputs)
                  if t == tensor.name]  # fmt: skip
        assert [(columns.maker[index], columns.output[index])] == (makers or [(-1, 0)])
        assert columns.made.get(tensor.name) == (makers[0] if makers else None)


def test_an_op_waits_for_those_that_make_what_it_reads(program: Program) -> None:
    expected = {
        (i, j)
        for i, op in enumerate(program.ops)
        for j, other in enumerate(program.ops)
        if {t for _, t in op.inputs} & {t for _, t in other.outputs}
    }
    waits, makers = program.columns.waits
    pairs = list(zip(waits.tolist(), makers.tolist(), strict=True))
    assert pairs == sorted(expected)
    assert {(i, j) for i, before in enumerate(program.columns.before) for j in before} == expected
    assert {(i, j) for j, after in enumerate(program.columns.after) for i in after} == expected


def test_a_program_without_ops_has_columns() -> None:
    columns = Program(
        (), (Tensor("x", (2,), "float32", "input"),), ("x",), ("x",), (), None
    ).columns
    assert columns.kind.tolist() == []
    assert columns.maker.tolist() == [-1]
    assert columns.waits[0].tolist() == []
