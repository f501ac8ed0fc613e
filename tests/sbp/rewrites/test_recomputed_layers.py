"""Layers that are computed again: the same numbers, and what is kept, made again, and waited for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle.simulated_program import run_program
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.blocks import layer_path, numbered
from autoddl.sbp.program.ops_and_tensors import AGAIN
from autoddl.sbp.rewrites.recomputation import PREFIX as CAPTURED
from autoddl.sbp.rewrites.recomputed_layers import (
    in_layers,
    layers_again,
    layers_of,
    ops_again,
    recomputes,
    with_nothing_again,
)
from tests.sbp.rewrites.test_halves import drawn
from tests.support.programs import Builder, activation, linear, mse, transformer

DEEP = transformer(layers=3, batch=4)


def copies(program: Program) -> list[str]:
    return [op.name.removeprefix(AGAIN) for op in program.ops if op.name.startswith(AGAIN)]


def stack(layers: int = 2) -> Program:
    """Return that of layers with two products and activations each."""
    g = Builder()
    x, target = g.input((4, 6)), g.input((4, 6))
    for layer in range(layers):
        with g.module(f"model.blocks.{layer}"):
            for part in ("first", "second"):
                with g.module(part):
                    x = activation(g, linear(g, x, 6), "gelu")
    return g.program(mse(g, x, target), "sgd")


@pytest.mark.parametrize("program", [DEEP, stack(3)])
def test_losses_and_gradients_are_bit_for_bit_the_same(program: Program) -> None:
    again, values = in_layers(program), drawn(program)
    assert recomputes(again) and not recomputes(program)
    expected, found = run_program(program, values), run_program(again, values)
    for name in (program.loss, *(p.gradient for p in program.parameters)):
        np.testing.assert_array_equal(found[str(name)], expected[str(name)])


@pytest.mark.parametrize("program", [DEEP, stack(3)])
def test_of_each_layer_the_backward_pass_reads_its_results_and_copies_alone(
    program: Program,
) -> None:
    again = in_layers(program)
    assert [op for op in again.ops if op.phase == "forward"] == [
        op for op in program.ops if op.phase == "forward"
    ]
    made = {name: op for op in program.ops if op.phase == "forward" for _, name in op.outputs}
    for op in again.ops:
        for _, name in op.inputs:
            if name in again.producer:
                assert again.columns.place[again.producer[name].name] < again.columns.place[op.name]
            if op.phase != "forward" and name in made and numbered(made[name].module):
                readers = [
                    reader for reader, _ in program.consumers[name] if reader.phase == "forward"
                ]
                layers = {layer_path(reader.module) for reader in readers}
                assert layers - {layer_path(made[name].module)}, name


def test_what_the_backward_pass_does_not_read_is_not_made_again() -> None:
    """Of gelu(x @ w + b) the sum is read, gelu's own result by the next product, the last one kept."""
    names = copies(in_layers(stack(2)))
    kinds = [name.rpartition("-")[0].rpartition("-")[2] for name in names]
    of_layer = [n for n, name in enumerate(names) if "blocks.1" in name]
    assert of_layer == list(range(len(names) // 2))  # the last layer comes first
    assert kinds.count("gelu") == 2  # one of two in each of two layers
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("program", [DEEP, stack(3)])
def test_some_ops_are_run_again_as_all_are(program: Program) -> None:
    every = in_layers(program)
    assert layers_again(every) == [layer for layer in layers_of(program) if "blocks" in layer]
    names = [name for name in ops_again(every) if "blocks.1" not in name]
    only = {name for n, name in enumerate(names) if n % 3}
    some, values = in_layers(program, only), drawn(program)
    assert set(ops_again(some)) == only and layers_again(some) == layers_again(every)[::2]
    for op in some.ops:
        assert not any(name.startswith(AGAIN) for _, name in op.inputs if name not in some.producer)
    expected, found = run_program(program, values), run_program(some, values)
    for name in (program.loss, *(p.gradient for p in program.parameters)):
        np.testing.assert_array_equal(found[str(name)], expected[str(name)])
    assert in_layers(program, ops_again(every)) == every and in_layers(program, ()) is program


@pytest.mark.parametrize("program", [DEEP, stack(3)])
def test_copies_can_be_taken_out_again(program: Program) -> None:
    again = in_layers(program)
    assert again != program == with_nothing_again(again) == with_nothing_again(program)


def test_copies_wait_for_what_their_first_reader_needs_besides() -> None:
    again = in_layers(stack(2))
    place = again.columns.place
    assert set(again.waits) == {AGAIN + name for name in copies(again)}
    for copy, before in again.waits.items():
        assert place[before] < place[copy]
        op = again.op[before]
        assert op.phase == "backward" or op.module == ""
    first, then = again.precedence
    pairs = set(zip(first.tolist(), then.tolist(), strict=True))
    assert {(place[b], place[c]) for c, b in again.waits.items()} <= pairs


def test_random_numbers_are_drawn_once() -> None:
    program = stack(2)
    drawing = next(op for op in program.ops if op.type == "gelu")

    def as_dropout(op: Op) -> Op:
        return replace(op, type="random_mask_like") if op.name == drawing.name else op

    changed = replace(program, ops=tuple(map(as_dropout, program.ops)))
    assert drawing.name in copies(in_layers(program))
    assert drawing.name not in copies(in_layers(changed))


def test_without_layers_nothing_changes() -> None:
    g = Builder()
    x, target = g.input((4, 6)), g.input((4, 6))
    with g.module("model.only"):
        x = activation(g, linear(g, x, 6), "gelu")
    program = g.program(mse(g, x, target), "sgd")
    assert in_layers(program) is program and not program.waits


def test_what_was_captured_with_checkpointing_is_left_alone() -> None:
    program = stack(2)
    found = replace(program.ops[-1], name=f"{CAPTURED}{program.ops[0].name}")
    captured = replace(program, ops=(*program.ops[:-1], found))
    assert in_layers(captured) is captured
