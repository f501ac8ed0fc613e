"""Programs of another batch: beside programs made at that size, and the engine's traces."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.rewrites.micro_batch import batch_of, micro_batch, with_batch
from tests.sbp.rewrites.test_micro_batch import (
    PROGRAMS,
    forward_only,
    masked,
    narrowed,
    numbered,
    time_major,
    with_token,
)
from tests.support.programs import Builder, mlp, transformer

MADE = {
    **PROGRAMS, "batch behind time": time_major, "masked": masked, "narrowed": narrowed,
    "numbered": numbered, "token": with_token,
}  # fmt: skip
PAIRS = [(4, 8), (8, 12), (12, 8), (12, 7), (4, 64), (6, 2)]


@pytest.mark.parametrize(("now", "batch"), PAIRS)
@pytest.mark.parametrize("name", MADE)
def test_equals_the_program_made_at_that_size(name: str, now: int, batch: int) -> None:
    assert with_batch(MADE[name](now), batch) == MADE[name](batch)


@pytest.mark.parametrize("name", MADE)
def test_there_and_back(name: str) -> None:
    whole = MADE[name](6)
    assert with_batch(with_batch(whole, 10), 6) == whole
    assert with_batch(whole, 3) == micro_batch(whole, 2)
    assert with_batch(whole, 6) is whole


def test_the_batch_is_what_divides_all_inputs() -> None:
    assert batch_of(transformer(batch=12)) == 12
    g = Builder()
    rows, x = g.input((24, 6)), g.input((8, 3, 6))
    both = forward_only(g, g.op("relu", "x_0 -> y_0", [rows], (24, 6)))
    assert batch_of(both) == 8
    assert [with_batch(both, 2).tensor[name].shape for name in (rows, x)] == [(6, 6), (2, 3, 6)]


def coupled(batch: int) -> Any:
    """Return a program that compares every sample with every other one."""
    g = Builder()
    x = g.input((batch, 6))
    both = g.op(
        "matmul", "a_0 b_0 -> out_0", [x, x], (batch, batch), alpha=1.0, transpose_a=False,
        transpose_b=True,
    )  # fmt: skip
    return forward_only(g, both)


@pytest.mark.parametrize(
    ("program", "batch", "expected"),
    [
        (mlp(8), 0, "batch: got 0; allowed are whole numbers from 1"),
        (mlp(8), -2, "batch: got -2"),
        (mlp(8), 2.5, "batch: got 2.5"),
        (mlp(8), True, "batch: got True"),
        (mlp(8), "8", "batch: got '8'"),
        (mlp(8), 1 << 40, "batch: got 1099511627776"),
        (
            mlp(1),
            4,
            r"dims 0 have no common batch of 2 or more samples .*; capture the program with",
        ),
        (coupled(8), 16, "a batch of 16 in place of 8 would cut .* it can't be computed in parts"),
        (coupled(8), 4, "a batch of 4 in place of 8 would cut "),
    ],
)
def test_what_has_no_other_batch_says_why(program: Any, batch: Any, expected: str) -> None:
    with pytest.raises(AutoDDLError, match=expected) as error:
        with_batch(program, batch)
    assert str(error.value).isprintable()


MODELS = ("gpt", "resnet50", "vit_moe")


@pytest.mark.oneflow
@pytest.mark.parametrize("name", MODELS)
def test_is_what_the_engine_traces_at_that_size(name: str) -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import build

    small, large = (capture(graph, *i) for graph, i in (build(name, batch=n) for n in (4, 8)))
    assert with_batch(small, 8) == large
    assert with_batch(with_batch(large, 6), 4) == small
