"""Source of functions that scripts carry, read from their modules without importing these.

The modules of `runtime` import OneFlow, which is not needed to write a script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

_RUNTIME = f"{__package__}.runtime"


def functions_of(module: str, *names: str) -> str:
    """Return the source of functions of a module of `runtime`, or of one with dots, in this order."""
    known = _functions(module if "." in module else f"{_RUNTIME}.{module}")
    return "\n\n\n".join(known[name] for name in names)


def called(texts: Iterable[str], known: Mapping[str, str]) -> list[str]:
    """Return the source of those functions that are called somewhere; `known` has the module of each."""
    text = "\n".join(texts)
    return [
        functions_of(module, name)
        for name, module in known.items()
        if re.search(rf"\b{name}\(", text)
    ]


@lru_cache
def _functions(module: str) -> dict[str, str]:
    """Return the source of all functions of a module."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    lines = text.splitlines()
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found}
