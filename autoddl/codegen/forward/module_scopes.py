"""Which modules become functions, and where every value is made.

A module becomes a function if it is large enough, its ops follow each other without others between, and
it does more than call functions. A value is made in the innermost function that has all its readers.

Example: model, model.blocks.0 and model.blocks.0.ln1 (7 ops) get functions, model.blocks.0.act (1 op)
does not; a weight that both blocks read in another state is boxed in the function of model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from autoddl.codegen.forward.section import Section, Value
from autoddl.sbp.program import Op
from autoddl.sbp.program.blocks import is_layer

MIN_OPS = 6  # a module with fewer forward ops is written inside the function of its parent
MIN_REPEATED = 4  # the same for one of a numbered list of modules


def within(module: str, scope: str) -> bool:
    """Tell whether a module or a variable lies in a scope."""
    return not scope or module == scope or module.startswith(f"{scope}.")


def common(scopes: Iterable[str]) -> str:
    """Return the innermost module that all scopes lie in."""
    first, *rest = list(scopes)
    for other in rest:
        while not within(other, first):
            first = first.rpartition(".")[0]
    return first


class Scopes:
    """The functions of a section: "" is the section's own, the others are named by their modules."""

    def __init__(self, section: Section, top: str, *, inline_top: bool = False) -> None:
        self.section = section
        found = _functions(section.ops, top)
        self.functions = ("", *(f for f in found if not (inline_top and f == top)))
        self._scope_of = {op.name: self._innermost(op.module) for op in section.ops}

    def scope(self, op: Op) -> str:
        """Return the function in which an op is written."""
        return self._scope_of[op.name]

    def parent(self, function: str) -> str:
        """Return the function that calls `function`."""
        return self._innermost(function, proper=True)

    def is_variable(self, value: Value) -> bool:
        """Tell whether a value is a parameter or buffer as it is stored."""
        section = self.section
        return not (
            value.path or value.tensor in section.made_by or value.tensor in section.arguments
        )

    def in_reach(self, value: Value, scope: str) -> bool:
        """Tell whether a function finds a variable among the parameters of its own module."""
        return self.is_variable(value) and within(value.tensor, scope)

    @cached_property
    def homes(self) -> dict[Value, str]:
        """Return the function in which each value is made or, for a variable, first looked up."""
        found: dict[Value, str] = {}
        section = self.section
        for value in (*section.readers, *section.results):
            while value not in found:
                found[value] = self._home(value)
                if not value.path:
                    break
                value = value.source
        for tensor in section.made_by:
            found.setdefault(Value(tensor), self._home(Value(tensor)))
        return found

    def _home(self, value: Value) -> str:
        section = self.section
        if not value.path:
            if value.tensor in section.made_by:
                return self.scope(section.made_by[value.tensor])
            if value.tensor in section.arguments:
                return ""
        scopes = [self.scope(op) for op in section.readers.get(value, ())]
        scopes += [self._home(other) for other in section.boxed.get(value, ())]
        scopes += [""] if value in section.results else []
        if not value.path:
            scopes.append(value.tensor.rpartition(".")[0])
        return self._innermost(common(scopes))

    def _innermost(self, module: str, *, proper: bool = False) -> str:
        """Return the innermost function that a module lies in."""
        fitting = [f for f in self.functions if within(module, f) and not (proper and f == module)]
        return max(fitting, key=len)


def _functions(ops: Sequence[Op], top: str) -> list[str]:
    """Return the modules worth a function of their own: large enough, and in one piece."""
    places: dict[str, list[int]] = {}
    for index, op in enumerate(ops):
        parts = op.module.split(".") if op.module else []
        for length in range(1, len(parts) + 1):
            places.setdefault(".".join(parts[:length]), []).append(index)
    found = []
    for module, indices in places.items():
        if indices[-1] - indices[0] + 1 != len(indices):
            continue
        if module == top:
            if len(indices) < len(ops):
                found.append(module)
        elif len(indices) >= (MIN_REPEATED if is_layer(module) else MIN_OPS):
            found.append(module)
    return _without_shells(found, places)


def _without_shells(found: list[str], places: dict[str, list[int]]) -> list[str]:
    """Leave out modules all of whose ops are in functions inside them: those do for a caller."""
    kept = []
    for module in found:
        inside = {i for other in found if _around(module, other) for i in places[other]}
        if len(inside) < len(places[module]):
            kept.append(module)
    return kept


def _around(module: str, other: str) -> bool:
    return other != module and within(other, module)
