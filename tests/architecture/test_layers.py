"""Who imports whom, lazy imports and those for types included: down the layers only, and in no circle."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("autoddl", "experiments")
Imports = Mapping[str, frozenset[str]]


def files() -> Iterator[tuple[str, Path]]:
    """Yield the modules of the project by name."""
    for package in PACKAGES:
        folders = [ROOT / package]
        while folders:
            folder = folders.pop()
            for path in sorted(folder.iterdir()):
                if path.is_dir() and path.name != "__pycache__":
                    folders.append(path)
                elif path.suffix == ".py":
                    parts = path.relative_to(ROOT).with_suffix("").parts
                    yield ".".join(p for p in parts if p != "__init__"), path


@cache
def trees() -> Mapping[str, ast.Module]:
    """Return the syntax tree of each module."""
    return {name: ast.parse(path.read_text()) for name, path in files()}


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield all statements, nested ones included, and no expression, in which no import can be."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.stmt):
                yield node
            if not isinstance(node, ast.expr):
                waiting.append(node)


@cache
def imports() -> Imports:
    """Return the modules of the project that each module imports, wherever in its text."""
    known = set(trees())
    found: dict[str, frozenset[str]] = {}
    for name, tree in trees().items():
        wanted: set[str] = set()
        for node in statements(tree):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= inside & known or {node.module}
        found[name] = frozenset(wanted & known) - {name}
    return found


@cache
def layers() -> list[list[str]]:
    """Return the layers that pyproject.toml names, the top first."""
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^layers = \[\n(.*?)^\]", text, re.M | re.S)
    assert listed is not None
    return [re.findall(r"[a-z_.]+", line) for line in listed[1].splitlines()]


@cache
def layer(module: str) -> int | None:
    """Return the number of a module's layer; the package itself, and other packages, have none."""
    rest = module.removeprefix("autoddl.")
    places = [
        (len(name), number)
        for number, names in enumerate(layers())
        for name in names
        if rest == name or rest.startswith(f"{name}.")
    ]
    return max(places)[1] if places and module.startswith("autoddl.") else None


def circle(graph: Imports) -> list[str]:
    """Return a circle of a graph, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_module_is_in_a_layer() -> None:
    own = [name for name in imports() if name.startswith("autoddl.")]
    assert len(own) > 200
    engine = {"autoddl.engine"}  # its modules lie in several layers
    assert [name for name in own if layer(name) is None and name not in engine] == []


def test_imports_point_down() -> None:
    upwards = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if (here := layer(name)) is not None and (there := layer(other)) is not None
        if there < here
    ]
    assert upwards == []


def test_nothing_below_imports_experiments() -> None:
    assert [n for n, others in imports().items() if n.startswith("autoddl")
            and any(o.startswith("experiments") for o in others)] == []  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_in_no_circle(package: str) -> None:
    own = {
        name: others - {"autoddl"}  # the package names all that users call
        for name, others in imports().items()
        if name.startswith(f"{package}.")
    }
    assert circle(own) == []


def test_folders_are_in_no_circle() -> None:
    """Those of one layer, too, of which the contract says nothing."""
    named = sorted((name for names in layers() for name in names), key=len, reverse=True)

    def folder(module: str) -> str:
        rest = module.removeprefix("autoddl.")
        return next((n for n in named if rest == n or rest.startswith(f"{n}.")), "")

    found: dict[str, set[str]] = {}
    for name, others in imports().items():
        if name.startswith("autoddl."):
            found.setdefault(folder(name), set()).update(map(folder, others - {"autoddl"}))
    graph = {name: frozenset(others - {name}) for name, others in found.items() if name}
    assert circle(graph) == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    found = circle({name: frozenset(others) for name, others in graph.items()})
    assert set(found) == {"a", "b", "c"}


LARGE = {"autoddl/sbp/rules", "experiments/models", "autoddl/sbp", "autoddl/perfmodel"}
"""Folders with more files: one for each kind of op or model, and two that still have some more."""


def test_folders_have_twelve_files_at_most() -> None:
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for _, path in files())
    assert {folder for folder, count in counts.items() if count > 12} <= LARGE
