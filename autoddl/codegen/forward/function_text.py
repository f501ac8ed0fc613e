"""Functions of a script as text: their names, docstrings and lines; runs of equal calls as loops.

Example: x = block(part(params, "blocks.0"), x) and the same for blocks.1 and blocks.2 become
`for i in range(3): x = block(part(params, f"blocks.{i}"), x)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from autoddl.codegen.forward.function import Group, Groups
from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import indexed, quoted
from autoddl.codegen.source.identifiers import function_name
from autoddl.codegen.source.source_lines import Call, Comment, Line


def name_groups(groups: Groups, top: str, script: Collection[str]) -> None:
    """Name the functions that have none: after their modules, the most frequent first.

    The rest of the script has the names `script`.
    """
    taken = {group.name for group in groups.groups if group.name} | set(script)
    taken |= {name for group in groups.groups for name in _variables(group)}
    waiting = [group for group in groups.groups if not group.name]
    shared = Counter(_own_name(group, top, 1) for group in waiting)
    for group in sorted(waiting, key=lambda g: -len(g.functions)):
        own = _own_name(group, top, 1)
        module = group.functions[0].module
        number = module.rpartition(".")[2]
        options = [own] if len(group.functions) > 1 or shared[own] == 1 else []
        options += [f"{own}_{number}"] if number.isdigit() else []
        options += [own, *(_own_name(group, top, parts) for parts in (2, 3))]
        options += [f"{own}_{'_'.join(re.findall(r'[0-9]+', module))}"]
        options += [f"{own}_{i}" for i in range(2, len(waiting) + 3)]
        group.name = next(name for name in options if name not in taken)
        taken.add(group.name)


def _variables(group: Group) -> set[str]:
    """Return the names that a group's function gives to values."""
    function = group.functions[0]
    lines = [line for line in function.lines if not isinstance(line, Comment)]
    return {*function.arguments, *(name for line in lines for name in line.targets)}


def _own_name(group: Group, top: str, parts: int) -> str:
    """Return the most frequent name of a group's functions, with so many parts of their paths."""
    names = []
    for function in group.functions:
        module = function.module[len(top) + 1 :] if top else function.module
        names.append(function_name(module, function.ops, parts))
    return Counter(names).most_common(1)[0][0]


def written(group: Group, groups: Groups, top: str) -> str:
    function = group.functions[0]
    public = function.module in ("", top)
    arguments = list(function.arguments)
    if function.has_parameters or public:
        arguments.insert(0, "params" if public else "p")
    head = f"def {group.name}({', '.join(arguments)})"
    lines = layout.laid_out(head, 0, end=":") or [f"{head}:"]
    body = layout.docstring(_docstring(group, top), 4)
    for line in _loops(function.lines, groups):
        body += _line(line, groups, function.module in ("", top))
    return "\n".join([*lines, *body])


def _docstring(group: Group, top: str) -> str:
    function = group.functions[0]
    if not function.module and group.name == "loss_of":
        return "Return the loss of one batch."
    if not function.module:
        return f"Run {group.name.replace('_', ' ')}: {function.flow}."
    names = [f.module[len(top) + 1 :] if top else f.module for f in group.functions]
    what = _modules(names) if all(names) else "the model"
    return f"Run {what}: {function.flow}."


def _modules(names: Sequence[str]) -> str:
    """Return "blocks.0 to blocks.3", "norm", "blocks.0.ln1 and 4 more"."""
    if len(names) == 1:
        return names[0]
    heads = {re.sub(r"\d+$", "", name) for name in names}
    if len(heads) == 1 and all(name[-1].isdigit() for name in names):
        return f"{names[0]} to {names[-1]}"
    return f"{names[0]} and {len(names) - 1} more like it"


class Loop:
    """Calls of one function for consecutive numbers."""

    def __init__(self, first: Call, start: int, count: int, pattern: str) -> None:
        self.first, self.start, self.count, self.pattern = first, start, count, pattern


def _loops(lines: Sequence[Line], groups: Groups) -> list[Line | Loop]:
    """Return the lines with runs of calls for blocks.0, blocks.1, … as loops."""
    found: list[Line | Loop] = []
    for line in lines:
        last = found[-1] if found else None
        if isinstance(line, Call) and line.part and set(line.targets) <= set(line.args):
            match = re.fullmatch(r"(.*?)(\d+)", line.part)
            if match is not None:
                number, pattern = int(match[2]), match[1]
                same = (
                    isinstance(last, Loop)
                    and (last.pattern, last.start + last.count) == (pattern, number)
                    and (last.first.group, last.first.args, last.first.targets)
                    == (line.group, line.args, line.targets)
                )
                if same and isinstance(last, Loop):
                    last.count += 1
                else:
                    found.append(Loop(line, number, 1, pattern))
                continue
        found.append(line)
    return [f.first if isinstance(f, Loop) and f.count == 1 else f for f in found]


def _line(line: Line | Loop, groups: Groups, public: bool) -> list[str]:
    if isinstance(line, Comment):
        return layout.comment(line.text, 4)
    if isinstance(line, Loop):
        bounds = f"{line.start}, {line.start + line.count}" if line.start else f"{line.count}"
        inside = _call(line.first, groups, public, indexed(line.pattern))
        return [f"    for i in range({bounds}):", *_statement(inside, 8)]
    if isinstance(line, Call):
        return _statement(_call(line, groups, public, quoted(line.part or "")), 4)
    text = f"{', '.join(line.targets)} = {line.text}" if line.targets else f"return {line.text}"
    return _statement(text, 4)


def _call(line: Call, groups: Groups, public: bool, part: str) -> str:
    own = "params" if public else "p"
    args = list(line.args)
    if line.part is not None:
        args.insert(0, f"part({own}, {part})" if line.part else own)
    text = f"{groups.groups[line.group].name}({', '.join(args)})"
    return f"{', '.join(line.targets)} = {text}" if line.targets else f"return {text}"


def _statement(text: str, indent: int) -> list[str]:
    return layout.laid_out(text, indent) or [" " * indent + text]
