"""The forward pass as Python functions: one for each module worth it, equal ones once."""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.codegen.dialect import Dialect
from autoddl.codegen.forward.frame import Frame
from autoddl.codegen.forward.function import Function, Groups
from autoddl.codegen.forward.function_writer import FunctionWriter
from autoddl.codegen.forward.module_scopes import Scopes, within
from autoddl.codegen.forward.section import Section
from autoddl.codegen.source.identifiers import function_name


def write_section(
    section: Section,
    groups: Groups,
    dialect: Dialect,
    name: str,
    argument_names: Mapping[str, str],
    *,
    top: str,
    staged: bool = False,
) -> Function:
    """Write the functions of a section, callees first, into the groups of a script.

    The section's own is called `name`, its arguments as given. Where it is a stage the model has no
    function of its own.
    """
    scopes = Scopes(section, top, inline_top=staged)
    named = {
        function_name(f, tuple(op for op in section.ops if within(op.module, f)))
        for f in scopes.functions
        if f
    }
    written: dict[str, Function] = {}
    group_of: dict[str, int] = {}
    for module in sorted(scopes.functions, key=lambda f: -len(f.split(".")) * bool(f)):
        frame = Frame(
            section=section,
            scopes=scopes,
            dialect=dialect,
            module=module,
            top=top,
            callees=written,
            group_of=group_of,
            argument_names=argument_names,
            function_names=frozenset(named | {"forward", "loss_of"}),
            placement=dialect.placement(staged=staged),
        )
        written[module] = FunctionWriter(frame).function()
        own = name if not module else ("forward" if module == top else "")
        group_of[module] = groups.add(written[module], own)
    return written[""]
