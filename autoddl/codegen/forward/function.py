"""What generated functions are: steps, lines, and groups of equal ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoddl.codegen.forward.section import Value
from autoddl.codegen.source.source_lines import Line
from autoddl.sbp.program import Op


@dataclass(frozen=True)
class FunctionStep:
    """One thing that a function does: an op (with its output), a call of a module, or a boxing."""

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    op: Op | None = None
    module: str | None = None


@dataclass
class Function:
    """A module's function: names of its arguments, its lines, and the values that go in and out."""

    module: str
    lines: tuple[Line, ...]
    arguments: tuple[str, ...]
    has_parameters: bool
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    ops: tuple[Op, ...] = ()
    flow: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is equal for functions that can be shared."""
        return self.lines, self.arguments, self.has_parameters


@dataclass
class Group:
    """Equal functions of several modules, with the name that they share."""

    functions: list[Function] = field(default_factory=list)
    name: str = ""


class Groups:
    """All functions of a script, equal ones together."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._known: dict[tuple[object, ...], int] = {}

    def add(self, function: Function, name: str = "") -> int:
        """Return the number of the group that a function belongs to; a name of its own, or by module."""
        key = (function.key, name)
        if key not in self._known:
            self._known[key] = len(self.groups)
            self.groups.append(Group(name=name))
        number = self._known[key]
        self.groups[number].functions.append(function)
        return number
