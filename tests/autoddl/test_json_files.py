"""Decoding: what is wrong in a file is said with its path, and with at most 200 characters of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from autoddl.errors import AutoDDLError
from autoddl.json_files import FieldError, decode


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise FieldError(f"size is {self.size}; allowed: 0 and more")


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    leaves: Mapping[str, Mapping[str, Leaf]]
    row: tuple[Leaf, ...] = ()


def read(body: str) -> Tree:
    text = f'{{"format": "tests.tree", "version": 3, {body}}}'
    return decode(text, Tree, form=("tests.tree", 3), where="file t", remedy="grow it again")


def test_a_good_file() -> None:
    assert read('"leaves": {"a": {"b": {"size": 1}}}') == Tree({"a": {"b": Leaf(1)}})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('"leaves": []', "$.leaves: expected `object`, got `array`: []"),
        ('"row": []', "$: object missing required field `leaves`: {'row': []}"),
        (
            '"leaves": {"a": {"b": {"size": 1}, "c": {"size": 0.5}}, "d": {}}',
            "$.leaves['a']['c'].size: expected `int`, got `float`: 0.5",
        ),
        (
            '"leaves": {"a": {"b": {"size": 1}}, "d": {"c": {"size": -1}, "e": {"size": -1}}}',
            "$.leaves['d']['c']: size is -1; allowed: 0 and more",
        ),
        (
            '"leaves": {}, "row": [{"size": 1}, {"size": 1, "wide": 2}]',
            "$.row[1]: object contains unknown field `wide`: {'size': 1, 'wide': 2}",
        ),
        (
            '"leaves": {}, "row": [{"size": 1, "\\n - at `$.leaves`": 2}]',
            "$.row[0]: object contains unknown field `\\n - at `$.leaves``: "
            "{'size': 1, '\\n - at `$.leaves`': 2}",
        ),
        ('"leaves": "' + "x" * 300 + '"', f"$.leaves: expected `object`, got `str`: '{'x' * 198}…"),
    ],
)
def test_what_is_wrong_and_where(body: str, message: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        read(body)
    assert str(caught.value) == f"file t: {message}; grow it again"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON (Input data was truncated)"),
        ("[1]", "not a tests.tree"),
        ('{"format": "tests.bush", "version": 3}', "not a tests.tree"),
        ('{"format": "tests.tree"}', "version None, this autoddl reads 3"),
        ('{"format": "tests.tree", "version": 2, "leaves": 1}', "version 2, this autoddl reads 3"),
        ('{"format": "tests.tree", "version": true}', "version True, this autoddl reads 3"),
    ],
)
def test_other_files(text: str, message: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        decode(text, Tree, form=("tests.tree", 3), where="file t", remedy="grow it again")
    assert str(caught.value) == f"file t: {message}; grow it again"
