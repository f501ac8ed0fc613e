"""One name, one thing: no class and no module has the name of another one."""

from __future__ import annotations

import ast
from collections import Counter

from tests.architecture.test_layers import files, trees

SPECIAL = ("__init__", "__main__")


def repeated(names: list[str]) -> dict[str, int]:
    """Return the names that occur more than once."""
    return {name: count for name, count in sorted(Counter(names).items()) if count > 1}


def test_no_class_has_the_name_of_another() -> None:
    names = []
    for tree in trees().values():
        names += [n.name for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
    assert len(names) > 200
    assert repeated(names) == {}


def test_no_module_has_the_name_of_another() -> None:
    names = [path.stem for _, path in files() if path.stem not in SPECIAL]
    assert len(names) > 200
    assert repeated(names) == {}
