"""The forward pass as Python functions: one for each module worth it, equal ones once."""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.codegen.function import Function, Groups
from autoddl.codegen.function_writer import FunctionWriter
from autoddl.codegen.names import function_name
from autoddl.codegen.scopes import Scopes, within
from autoddl.codegen.values import Section
from autoddl.sbp.program import Op


class Writer:
    """Write the functions of a section, callees first, into the groups of a script."""

    def __init__(
        self,
        section: Section,
        groups: Groups,
        *,
        top: str,
        checked: bool = False,
        inline_top: bool = False,
    ) -> None:
        self.section, self.groups, self.top, self.checked = section, groups, top, checked
        self.scopes = Scopes(section, top, inline_top=inline_top)
        self.group_of: dict[str, int] = {}
        self.function_of: dict[str, Function] = {}
        self._ops_of = {
            f: tuple(op for op in section.ops if within(op.module, f))
            for f in self.scopes.functions
        }
        self.function_names = {
            function_name(f, self._ops_of[f]) for f in self.scopes.functions if f
        } | {"forward", "loss_of"}

    def write(self, name: str, argument_names: Mapping[str, str]) -> Function:
        """Write all functions; the section's own is called `name`, its arguments as given."""
        for module in sorted(self.scopes.functions, key=lambda f: -len(f.split(".")) * bool(f)):
            function = FunctionWriter(self, module, argument_names).function()
            own = name if not module else ("forward" if module == self.top else "")
            self.function_of[module] = function
            self.group_of[module] = self.groups.add(function, own)
        return self.function_of[""]

    def ops_of(self, module: str) -> tuple[Op, ...]:
        """Return the ops of a function and of those that it calls."""
        return self._ops_of[module]

    def variable_key(self, tensor: str, scope: str) -> str:
        """Return the name of a variable among the parameters that a function gets."""
        prefix = scope or self.top
        return tensor[len(prefix) + 1 :] if prefix and within(tensor, prefix) else tensor
