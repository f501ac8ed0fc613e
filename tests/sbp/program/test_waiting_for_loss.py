"""Which ops wait for the loss: what the walk over columns tells is what sets of ops tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoddl.sbp.program import Program
from autoddl.sbp.program import waiting_for_loss as walks
from autoddl.sbp.program.ops_and_tensors import AGAIN
from autoddl.sbp.rewrites.recomputed_layers import in_layers
from tests.support.programs import transformer

PROGRAM = transformer(layers=2, batch=4, length=2, vocabulary=64)


@pytest.mark.parametrize("program", [PROGRAM, replace(PROGRAM, loss=None)])
def test_what_waits_for_the_loss_reads_it_or_what_does(program: Program) -> None:
    behind = {i for i, op in enumerate(program.ops) if op.phase != "forward"}
    late, changed = set[int](), {program.loss}
    for op in sorted(behind):
        if any(tensor in changed for _, tensor in program.ops[op].inputs):
            late.add(op)
            changed.update(tensor for _, tensor in program.ops[op].outputs)
    wanted = behind if program.loss is None else late
    assert set(walks.waiting_for_loss(program).nonzero()[0].tolist()) == wanted
    assert wanted


def test_copies_of_forward_ops_wait_for_it() -> None:
    again = in_layers(PROGRAM)
    late = {again.ops[i].name for i in walks.waiting_for_loss(again).nonzero()[0]}
    copies = {op.name for op in again.ops if op.name.startswith(AGAIN)}
    assert copies and copies <= late
    kept = {PROGRAM.ops[i].name for i in walks.waiting_for_loss(PROGRAM).nonzero()[0]}
    assert kept <= late - copies
