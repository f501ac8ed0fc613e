"""Positions: a place between two of them cuts forward pass, backward pass and updates in two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.forward_positions import positions, stages
from tests.support.programs import mlp, tied, transformer
from tests.support.zoo import ZOO as HAND_MADE

TRACED = (
    "alexnet", "bert_moe", "dlrm", "gpt", "llama", "resnet50", "t5", "transgan", "unet", "vgg13", "vit",
)  # fmt: skip
# Reshapes and transposes cut and join TransGAN's grids: no tensor tells which of them are differentiated.
LEAST = {"transgan": 0.9}


PROGRAMS = {**HAND_MADE, "tied": tied}


def check_flow(program: Program, turn: Mapping[str, int] | None = None) -> None:
    """Forward results go to equal or later positions, gradients to equal or earlier ones."""
    found = positions(program, turn)
    forward = [op for op in program.ops if op.phase == "forward"]
    forward.sort(key=lambda op: (turn or found.op)[op.name])
    assert found.count == len(forward)
    assert [found.op[op.name] for op in forward] == list(range(len(forward)))
    assert set(found.op) == set(program.op)
    held = {n for p in program.parameters for n in (p.tensor, *p.states)}
    assert set(found.held) == {*program.inputs, *held}
    for tensor, readers in program.consumers.items():
        made = program.producer.get(tensor)
        for op, _ in readers:
            if made is None:
                if op.phase == "forward":
                    assert found.held.get(tensor, 0) <= found.op[op.name]
            elif made.phase == "backward":
                assert found.op[op.name] <= found.op[made.name], (made.name, op.name)
            elif op.phase == "forward":
                assert found.op[made.name] < found.op[op.name]
    for parameter in program.parameters:
        places = {found.held[n] for n in (parameter.tensor, *parameter.states)}
        places |= {found.op[parameter.update]} if parameter.update else set()
        assert len(places) == 1, parameter


def check_differentiated(program: Program) -> None:
    """An op that is given a forward result stands where some forward op makes or reads it, or before."""
    found = positions(program)
    around: dict[str, set[int]] = {}
    for op in program.ops:
        if op.phase == "forward":
            for _, tensor in op.operands:
                around.setdefault(tensor, set()).add(found.op[op.name])
    given = {
        program.loss
    }  # and what comes of its gradient; other ops compute forward results again
    for op in program.ops:
        inputs = {tensor for _, tensor in op.inputs}
        if op.phase != "backward" or not inputs & given:
            continue
        made = [program.producer[tensor] for tensor in inputs & given]
        given |= {tensor for _, tensor in op.outputs}
        latest = min(found.op[o.name] for o in made)
        assert found.op[op.name] <= latest, op.name
        known = [around[tensor] for _, tensor in op.inputs if tensor in around]
        common = {p for p in set.intersection(*known) if p <= latest} if known else set()
        if common:
            assert found.op[op.name] <= max(common)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_never_flow_to_a_later_position(name: str) -> None:
    check_flow(PROGRAMS[name]())


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(3))
def test_nor_do_they_along_another_order_of_the_forward_pass(name: str, seed: int) -> None:
    program, rng = PROGRAMS[name](), np.random.default_rng(seed)
    turn: dict[str, int] = {}
    waiting = [op for op in program.ops if op.phase == "forward"]
    makers = {
        op.name: {program.producer[t].name for _, t in op.inputs if t in program.producer}
        for op in waiting
    }
    while waiting:
        ready = [op for op in waiting if makers[op.name] <= turn.keys()]
        chosen = ready[int(rng.integers(len(ready)))]
        turn[chosen.name] = len(turn)
        waiting.remove(chosen)
    check_flow(program, turn)


@pytest.mark.parametrize("name", PROGRAMS)
def test_stages_of_a_cut_leave_the_order_as_it_is(name: str) -> None:
    program = PROGRAMS[name]()
    found = positions(program)
    cut = stages(found, [found.count // 3, found.count // 2])
    assert positions(program, cut) == found


@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_ops_stand_no_later_than_what_their_gradients_allow(name: str) -> None:
    check_differentiated(PROGRAMS[name]())


def module_of(op: Op) -> str:
    """Return the module that the name of an op tells of, "" outside of all."""
    return op.name.rpartition(f"-{op.type}-")[0]


def share_in_module(program: Program) -> tuple[float, list[str]]:
    """Return how many backward ops stand where the ops of their module do, and the others.

    Or where a forward op reads what the module made: a stage that has it need not ask for it.
    """
    found = positions(program)
    span: dict[str, set[int]] = {}
    for op in program.ops:
        if op.phase == "forward":
            readers = [o for _, t in op.outputs for o, _ in program.consumers.get(t, ())]
            around = {found.op[o.name] for o in (op, *readers) if o.phase == "forward"}
            span.setdefault(module_of(op), set()).update(around)
    told = [op for op in program.ops if op.phase == "backward" and span.get(module_of(op))]
    others = [op.name for op in told if found.op[op.name] not in span[module_of(op)]]
    return 1 - len(others) / len(told), others


@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_ops_stand_in_the_module_of_their_name(name: str) -> None:
    share, others = share_in_module(PROGRAMS[name]())
    assert share >= 0.97, others


@pytest.mark.oneflow
@pytest.mark.parametrize("name", TRACED)
def test_traced_models_too(name: str) -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import build

    graph, inputs = build(name, "toy")
    program = capture(graph, *inputs)
    check_flow(program)
    check_differentiated(program)
    share, others = share_in_module(program)
    assert share >= LEAST.get(name, 0.97), others


def test_an_op_that_counts_batches_stands_beside_its_module() -> None:
    program = mlp(8, (16, 16, 16, 16), act="relu")
    count = Op(
        "model.fc2-scalar_add-1", "scalar_add", (("in_0", "model.fc2.count"),),
        (("out_0", "model.fc2-scalar_add-1/out_0"),), phase="backward", module="model.fc2",
    )  # fmt: skip
    counting = replace(program, ops=(*program.ops, count))
    found = positions(counting)
    last = max(found.op[op.name] for op in program.ops if op.module == "model.fc2")
    assert found.op[count.name] == last


def test_a_stage_has_all_ops_and_variables_from_its_position_on() -> None:
    program = transformer(layers=2)
    found = positions(program)
    first, second = found.count // 3, 2 * found.count // 3
    stage = stages(found, (first, second))
    assert set(stage) == {*found.op, *found.held}
    for name, place in (*found.op.items(), *found.held.items()):
        assert stage[name] == (0 if place < first else 1 if place < second else 2)
    assert set(stages(found, ()).values()) == {0}
