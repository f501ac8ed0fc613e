"""Values by name against the dict that has the same."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from autoddl.perfmodel.by_name import ByName

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


def test_it_is_pickled_as_a_dict() -> None:
    found = pickle.loads(pickle.dumps(columns()))
    assert (type(found), list(found.items())) == (dict, list(HELD.items()))


def test_the_columns_of_a_dict_have_each_value_once() -> None:
    found = ByName.of(PLACE, {**HELD, "e": "z"})
    assert found == HELD and list(found) == list(HELD)
    assert sorted(found.distinct) == ["x", "y"]
    assert [found.distinct[n] if n >= 0 else None for n in found.every] == ["y", None, "x", "x"]
    assert ByName.of(PLACE, found) is found
    assert ByName.of(dict(PLACE), found) is not found


def test_what_has_to_be_complete_names_what_is_not() -> None:
    with pytest.raises(KeyError, match="b"):
        columns().complete()
    whole = ByName.of(PLACE, {**HELD, "b": "z"})
    assert whole.complete() is whole.every
    assert len(ByName.of(PLACE, {}).every) == 4
