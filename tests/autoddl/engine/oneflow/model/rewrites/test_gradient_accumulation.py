"""Sums of gradients, and buffers for what the backward pass reads."""

from __future__ import annotations

from autoddl.engine.oneflow.model.rewrites.gradient_accumulation import (
    BUFFER,
    SCALE,
    SUM,
    buffered,
    summed,
)
from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp
from tests.support.programs import mlp

B, S = NdSbp.parse("B"), NdSbp.parse("S0")


def whole(program: Program, *moved: Redistribution) -> Layout:
    signatures = {op.name: dict.fromkeys(dict(op.operands), B) for op in program.ops}
    variables = [name for p in program.parameters for name in (p.tensor, *p.states)]
    inputs = dict.fromkeys(program.inputs, B)
    return Layout.of(program, signatures, dict.fromkeys(variables, B), inputs, moved)


def test_each_gradient_is_summed_up_before_its_update() -> None:
    program = mlp(8, (16, 32, 8), optimizer="momentum")
    found = summed(whole(program)).program
    for parameter in program.parameters:
        assert parameter.gradient is not None and parameter.update is not None
        total = f"{SUM} {parameter.gradient}"
        assert found.op[total].inputs == (("in_0", parameter.gradient),)
        (mean,) = [op for op, _ in found.consumers[total]]
        assert (mean.type, mean.phase) == (SCALE, "optimizer")
        read = {tensor for _, tensor in found.op[parameter.update].inputs}
        assert mean.outputs[0][1] in read and parameter.gradient not in read
    assert len(found.ops) == len(program.ops) + 2 * len(program.parameters)


def test_gradients_come_last_among_what_reads_their_variable() -> None:
    program = mlp(8, (16, 32, 8), optimizer="sgd")
    after = summed(whole(program)).after
    for parameter in program.parameters:
        made = program.producer[parameter.gradient or ""]
        readers = [op.name for op, _ in program.consumers[parameter.tensor]]
        back = [n for n in readers if program.op[n].phase == "backward" and n != made.name]
        assert after.get(made.name) == (back[-1] if back else None)
    assert after  # the second layer's weight is read to go on backward


def test_redistributions_for_updates_are_of_means_and_others_stay() -> None:
    program = mlp(8, (16, 32, 8), optimizer="sgd")
    first = program.parameters[0]
    assert first.gradient is not None and first.update is not None
    update = program.op[first.update]
    operand = next(o for o, tensor in update.inputs if tensor == first.gradient)
    reader = next(op for op in program.ops if program.inputs[0] in dict(op.inputs).values())
    kept = Redistribution(program.inputs[0], (S,), ((reader.name, reader.inputs[0][0]),))
    late = Redistribution(first.gradient, (S,), ((update.name, operand),))
    found = summed(whole(program, late, kept))
    (moved, *others) = found.redistributions
    assert others == [kept]
    assert found.program.producer[moved.tensor].type == SCALE
    assert (moved.path, moved.readers) == (late.path, late.readers)


def test_backward_reads_forward_results_from_buffers() -> None:
    program = mlp(8, (16, 32, 8))
    found = buffered(whole(program)).program
    forward = {t for op in program.ops if op.phase == "forward" for _, t in op.outputs}
    for op in found.ops:
        if op.phase == "backward":
            assert not {t for _, t in op.inputs} & (forward | set(program.inputs))
    held = [op for op in found.ops if op.type == BUFFER]
    assert len({op.name for op in held}) == len(held) > 0
    place = {op.name: number for number, op in enumerate(found.ops)}
    for op in held:
        source = op.inputs[0][1]
        if source in found.producer:
            assert place[op.name] > place[found.producer[source].name]
