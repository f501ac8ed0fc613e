"""Layouts and their columns against the names that they were made of."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from autoddl.sbp.layout import NONE, OUTPUT, ByName, Layout, Redistribution
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.state import NdSbp

PLACE = {"a": 0, "b": 1, "c": 2, "d": 3}
HELD = {"d": "x", "a": "y", "c": "x"}


def columns() -> ByName[str]:
    return ByName(PLACE, np.array([3, 0, 2]), np.array([1, 0, 1]), ["y", "x"])


def test_it_reads_like_the_dict() -> None:
    found = columns()
    assert (found, HELD) == (HELD, found) and found == columns()
    assert list(found.items()) == list(HELD.items())
    assert (repr(found), len(found)) == (repr(HELD), 3)
    assert [name in found for name in (*PLACE, "e", 1)] == [True, False, True, True, False, False]
    assert (found["d"], found.get("b"), found.get("e")) == ("x", None, None)
    assert found != {**HELD, "b": "x"} and found != {**HELD, "d": "y"}
    for missing in ("b", "e"):
        with pytest.raises(KeyError, match=missing):
            found[missing]


def test_it_is_the_same_when_it_was_pickled() -> None:
    found = pickle.loads(pickle.dumps(columns()))
    assert (type(found), list(found.items())) == (ByName, list(HELD.items()))


def test_the_columns_of_a_dict_have_each_value_once() -> None:
    found = ByName.of(PLACE, {**HELD, "e": "z"})
    assert found == HELD and list(found) == list(HELD)
    assert sorted(found.distinct) == ["x", "y"]
    assert [found.distinct[n] if n >= 0 else None for n in found.column] == ["y", None, "x", "x"]
    assert ByName.of(PLACE, found) is found
    assert ByName.of(dict(PLACE), found) is not found


def test_what_has_to_be_complete_names_what_is_not() -> None:
    with pytest.raises(KeyError, match="b"):
        columns().complete()
    whole = ByName.of(PLACE, {**HELD, "b": "z"})
    assert whole.complete() is whole.column
    assert len(ByName.of(PLACE, {}).column) == 4


B, S = NdSbp.parse("B"), NdSbp.parse("S0")


def program() -> Program:
    """x → a → t → b → u, and t → c → v, whose outputs are u and t."""
    ops = tuple(
        Op(name, "tanh", (("x_0", source),), (("y_0", made),))
        for name, source, made in (("a", "x", "t"), ("b", "t", "u"), ("c", "t", "v"))
    )
    roles = {"x": "input", **dict.fromkeys("tuv", "activation")}
    tensors = tuple(Tensor(name, (8, 8), "float32", role) for name, role in roles.items())
    return Program(ops, tensors, ("x",), ("u", "t"), (), None)


MOVED = (
    Redistribution("t", (B,), (("b", "x_0"), (OUTPUT, ""))),
    Redistribution("t", (S, B), (("c", "x_0"),), after="b", early=1),
    Redistribution("x", (B,), (("a", "x_0"),), after="c"),
)
SIGNATURES = {"a": {"x_0": B, "y_0": S}, **{name: {"x_0": B, "y_0": B} for name in "bc"}}


def layout() -> Layout:
    return Layout.of(program(), SIGNATURES, {}, {"x": S}, MOVED)


def test_redistributions_are_the_same_as_columns() -> None:
    found = layout()
    assert found.redistributions == MOVED
    moves = found.moves
    assert moves.tensor.tolist() == [1, 1, 0]
    assert [moves.paths[path] for path in moves.path] == [(B,), (S, B), (B,)]
    assert moves.slot.tolist() == [1, NONE, 2, 0] and moves.item.tolist() == [0, 0, 1, 2]
    assert (moves.after.tolist(), moves.early.tolist()) == ([NONE, 1, 2], [0, 1, 0])
    assert moves.alone.tolist() == [item.comes_alone for item in MOVED] == [False, False, True]
    assert moves.lengths.tolist() == [1, 2, 1]


def test_what_is_no_part_of_the_program_is_left_out() -> None:
    more = Redistribution("t", (B,), (("b", "x_0"), ("elsewhere", "x_0"), ("b", "y_0")))
    found = Layout.of(
        program(), {**SIGNATURES, "elsewhere": {}}, {"w": B}, {"x": S},
        [more, Redistribution("w", (B,), (("b", "x_0"),))],
    )  # fmt: skip
    assert found.redistributions == (Redistribution("t", (B,), (("b", "x_0"),)),)
    assert (found.signatures, found.variables) == (SIGNATURES, {})


def test_the_graph_returns_a_tensor_in_one_state() -> None:
    twice = [Redistribution("t", path, ((OUTPUT, ""),)) for path in ((B,), (S, B))]
    found = layout().with_redistributions(twice)
    assert [item.readers for item in found.redistributions] == [((OUTPUT, ""),), ()]


def test_states_of_what_is_made_and_kept() -> None:
    found = layout()
    assert found.made == {"x": S, "t": S, "u": B, "v": B}
    numbers = found.program.columns.number
    assert {name: found.state(number) for name, number in numbers.items()} == found.made


def test_layouts_are_equal_whose_names_are() -> None:
    found = layout()
    assert found == Layout.of(
        found.program, dict(reversed(SIGNATURES.items())), {}, {"x": S}, MOVED
    )
    assert found != found.with_redistributions(MOVED[:1])
    assert found != Layout.of(found.program, SIGNATURES, {}, {"x": B}, MOVED)
    assert found != Layout.of(found.program, SIGNATURES, {}, {"x": S}, MOVED, {"b": "a"})
    assert pickle.loads(pickle.dumps(found)) == found
