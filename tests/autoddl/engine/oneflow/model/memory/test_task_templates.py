"""Templates: what boxings consist of, kind by kind; equal ones are built once."""

from __future__ import annotations

import pytest

from autoddl.engine.oneflow.model.memory.task_graph import BOXING, NONE, OUTPUT, WORKSPACE
from autoddl.engine.oneflow.model.memory.task_templates import INPUT, ROLE, Templates
from autoddl.sbp.state import NdSbp

MIB = 1 << 20


def size(form: int, state: NdSbp) -> int:
    return MIB // 2 ** sum(sbp.is_split for sbp in state)


def templates(*coords: int, stream: bool = False) -> Templates:
    return Templates((2,) * len(coords), coords, size, compute_stream=stream)


HALF = MIB // 2
# from, to: how many tasks; (bytes, reused) of each buffer; what it returns
BOXINGS: dict[tuple[str, str], tuple[int, list[tuple[int, bool]], int]] = {
    ("S0", "B"): (1, [(MIB, False)], 0),
    ("P", "B"): (1, [(MIB, False)], 0),
    ("P", "S0"): (1, [(HALF, False)], 0),
    ("B", "S0"): (1, [(HALF, True)], 0),
    ("S1", "B"): (3, [(HALF, True), (MIB, False), (MIB, True)], 2),  # packed and unpacked
    ("P", "S1"): (3, [(MIB, True), (HALF, False), (HALF, True)], 2),
    ("S0", "S1"): (6, [(HALF // 2, True)] * 2 + [(HALF // 2, False), (HALF, True)], 3),
    ("B", "P"): (1, [(MIB, False)], 0),  # zeros
}


@pytest.mark.parametrize("pair", BOXINGS, ids="→".join)
def test_a_boxing_has_the_tasks_and_buffers_of_the_engine(pair: tuple[str, str]) -> None:
    found = templates(1)
    number = found.boxing(0, *map(NdSbp.parse, pair))
    tasks, sizes, result = BOXINGS[pair]
    columns = found.columns
    assert (len(columns.tasks), found.result[number]) == (tasks, result)
    buffers = columns.buffers
    assert list(zip(buffers["size"].tolist(), buffers["reused"].tolist(), strict=True)) == sizes
    assert set(buffers["kind"].tolist()) == {BOXING}
    assert set(buffers["origin"].tolist()) == {INPUT}
    assert columns.tasks["transfer"].all()


def test_the_first_device_keeps_the_value_where_others_make_zeros() -> None:
    found = templates(0)
    number = found.boxing(0, *map(NdSbp.parse, ("B", "P")))
    assert (found.result[number], len(found.columns.tasks)) == (INPUT, 0)


def test_nothing_changes_along_axes_of_one_device() -> None:
    found = Templates((1, 2), (0, 1), size, compute_stream=False)
    assert found.boxing(0, NdSbp.parse("S0,B"), NdSbp.parse("B,B")) == NONE


def test_changes_of_two_kinds_go_from_any_to_any() -> None:
    found = templates(1, 1)
    found.boxing(0, NdSbp.parse("S0,B"), NdSbp.parse("B,S1"))
    buffers = found.columns.buffers
    assert buffers["kind"].tolist() == [WORKSPACE, BOXING]
    assert buffers["size"].tolist() == [MIB, HALF]


def test_on_the_compute_stream_a_boxing_is_an_op() -> None:
    found = templates(1, stream=True)
    found.boxing(0, NdSbp.parse("S1"), NdSbp.parse("B"))
    columns = found.columns
    assert columns.tasks["inserted"].tolist() == [True]
    assert columns.tasks["merged"].tolist() == [True]
    assert columns.buffers["kind"].tolist() == [BOXING, WORKSPACE]
    assert columns.buffers["reused"].all()


def test_equal_templates_are_one() -> None:
    found, state = templates(1), NdSbp.parse("S0")
    numbers = [found.source(0, state, merged=flag) for flag in (True, False, True)]
    assert numbers == [0, 1, 0]
    assert found.output(100) == found.output(100) == 2
    assert found.identity(0, state) == found.identity(0, state) == 3
    buffers = found.columns.buffers
    assert buffers["kind"].tolist() == [ROLE, ROLE, OUTPUT, BOXING]
    assert buffers["size"].tolist() == [HALF, HALF, 512, HALF]  # whole multiples of 512
    assert found.never_reused_bytes().tolist() == [HALF, HALF, 512, 0]
