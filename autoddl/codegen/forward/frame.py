"""What is known before one function is written: its module, what goes in and out, who is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autoddl.codegen.dialect import Dialect
from autoddl.codegen.forward.function import Function
from autoddl.codegen.forward.module_scopes import Scopes, within
from autoddl.codegen.forward.section import Section, Value
from autoddl.codegen.source.expression import Expr
from autoddl.codegen.templates import Template, template_of
from autoddl.sbp.program import Op


@dataclass(frozen=True)
class Frame:
    """One function that is to be written: that of `module`, "" for the section's own.

    `callees` are the functions of modules inside, written before, `group_of` the numbers under which
    they are called. `argument_names` name the section's arguments, `function_names` are taken.
    """

    section: Section
    scopes: Scopes
    dialect: Dialect
    module: str
    top: str
    callees: Mapping[str, Function]
    group_of: Mapping[str, int]
    argument_names: Mapping[str, str]
    function_names: frozenset[str]
    placement: Expr

    @property
    def public(self) -> bool:
        """Tell whether users call the function: the section's own, or that of the model."""
        return self.module in ("", self.top)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Return the ops of the function and of those that it calls."""
        return tuple(op for op in self.section.ops if self.owns(op))

    def owns(self, op: Op) -> bool:
        """Tell whether an op is done in the function, or in one that it calls."""
        return within(op.module, self.module)

    def template(self, op: Op) -> Template:
        return template_of(op, self.dialect.templates)

    def variable_key(self, tensor: str) -> str:
        """Return the name of a variable among the parameters that the function gets."""
        prefix = self.module or self.top
        return tensor[len(prefix) + 1 :] if prefix and within(tensor, prefix) else tensor

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Return the values that come in, in the order of their first use."""
        if not self.module:
            return tuple(Value(tensor) for tensor in self.section.arguments)
        homes = self.scopes.homes
        found: dict[Value, None] = {}
        for op in self.ops:
            for value in self.section.reads(op).values():
                while within(homes[value], self.module) and value.path:
                    value = value.source
                if not within(homes[value], self.module):
                    found[value] = None
        return tuple(v for v in found if not self.scopes.in_reach(v, self.module))

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        section, homes = self.section, self.scopes.homes
        if not self.module:
            return section.results
        found: dict[Value, None] = {}
        for op in self.ops:
            for _, tensor in op.outputs:
                value = Value(tensor)
                outside = [o for o in section.readers.get(value, ()) if not self.owns(o)]
                boxed = [
                    b for b in section.boxed.get(value, ()) if not within(homes[b], self.module)
                ]
                if outside or boxed or value in section.results:
                    found[value] = None
        return tuple(found)
