"""Bytes of ops and tensors on one device, and who reads what, against names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoddl.engine.oneflow.model.memory.sizes import Dataflow, LocalSizes
from autoddl.engine.oneflow.model.memory.task_graph import BITS, MASK, NONE
from autoddl.sbp.program import ROLES, Program
from autoddl.sbp.shards import local_bytes
from autoddl.sbp.state import NdSbp
from tests.support.programs import mlp, tied, transformer


@pytest.mark.parametrize("make", [mlp, transformer, tied])
def test_the_flow_of_data_is_that_of_names(make: Callable[[], Program]) -> None:
    program = make()
    flow, slots = Dataflow(program), iter(range(len(program.columns.inputs.tensor)))
    for number, op in enumerate(program.ops):
        for _, tensor in op.inputs:
            made = int(flow.made[next(slots)])
            producer = program.producer.get(tensor)
            if producer is None:
                assert made == NONE
                continue
            assert program.ops[made >> BITS] is producer
            assert producer.outputs[made & MASK][1] == tensor
        held = flow.held[flow.first_held[number] : flow.first_held[number + 1]].tolist()
        results = [program.columns.number[tensor] for _, tensor in op.outputs]
        assert held == [*results, len(program.tensors) + number]
        assert flow.updates[number] == (op.phase == "optimizer")
    roles = [ROLES[role] for role in flow.role[: len(program.tensors)]]
    assert roles == [tensor.role for tensor in program.tensors]


def test_tensors_and_ops_take_their_local_bytes() -> None:
    program = transformer()
    sizes, state = LocalSizes(program, (2, 2)), NdSbp.parse("S0,B")
    for number, tensor in enumerate(program.tensors):
        form = int(program.columns.form[number])
        assert sizes.form(form, state) == local_bytes(tensor, state, (2, 2))
    for number, op in enumerate(program.ops):
        signature = {operand: state for operand, _ in op.operands}
        found = sizes.op(number, signature)
        assert found.results == tuple(
            local_bytes(program.tensor[name], state, (2, 2)) for _, name in op.outputs
        )
        assert sizes.op(number, dict(signature)) is found
