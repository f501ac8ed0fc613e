"""From a plan to the text of a script: the forward pass as functions, all else by the dialect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from autoddl.codegen.dialect import Dialect, ScriptContent
from autoddl.codegen.forward.forward_writer import write_section
from autoddl.codegen.forward.function import Groups
from autoddl.codegen.forward.function_text import name_groups, written
from autoddl.codegen.forward.section import Section, Value, forward_ops
from autoddl.codegen.optimizer_facts import optimizer_of
from autoddl.codegen.script_facts import inputs_of, top_module
from autoddl.codegen.stage_sections import StageSections, check_stages
from autoddl.errors import AutoDDLError, shown
from autoddl.plan.value import PlanValue
from autoddl.sbp.layout import OUTPUT, Layout, Redistribution
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import is_synchronised
from autoddl.sbp.rewrites.in_parts.whole_batchnorm import in_one_op
from autoddl.sbp.rewrites.in_parts.whole_masks import (
    has_whole_masks,
    in_one_dropout,
    renamed_in_one,
)
from autoddl.sbp.rewrites.recomputed_layers import recomputes

_T = TypeVar("_T")
_DAMAGES = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, StopIteration)


def generate(plan: PlanValue, dialect: Dialect, *, learning_rate: float | None = None) -> str:
    """Return a plan as the text of a Python script that needs only the engine and NumPy.

    `learning_rate` is the default of the script's option, if it is to be another than the graph's.

    Raises:
        AutoDDLError: the plan does not fit its program; states that the engine has not; ops without
            a template.
    """
    if learning_rate is not None and not 0 <= learning_rate < math.inf:
        raise AutoDDLError(
            f"codegen: learning rate {learning_rate}; allowed are finite numbers >= 0"
        )
    if plan.program.loss is None:
        raise AutoDDLError(
            "codegen: the graph has no loss; call loss.backward() in build() and add an optimizer"
        )
    if plan.duplex:
        raise AutoDDLError(
            "codegen: a script has no halves of a batch in turn, only plan.apply runs them; plan with "
            "duplex=False"
        )
    if recomputes(plan.program):
        raise AutoDDLError(
            "codegen: a script has no layers that are computed again, only plan.apply runs them; plan "
            "with recompute='none', or in stages"
        )
    if plan.program.constants:
        names = [name for name, _ in plan.program.constants]
        raise AutoDDLError(
            f"codegen: the graph's code makes or holds {len(names)} tensors that are no parameters or "
            f"buffers, first {shown(names[0])}; let modules keep them with register_buffer, so that "
            "scripts read them"
        )
    if is_synchronised(plan.program) or has_whole_masks(plan.program):
        plan = _in_one_op(plan)
    try:
        dialect.check(plan)
        return dialect.script(_content(plan, dialect, learning_rate))
    except _DAMAGES as error:  # a plan may come from a file, where all types fit but not the whole
        raise AutoDDLError(
            f"codegen: the plan does not fit its program ({shown(error)}); plan again with "
            "autoddl.optimize"
        ) from error


def write(
    plan: PlanValue, path: str | Path, dialect: Dialect, *, learning_rate: float | None = None
) -> None:
    """Write a plan as a script; see `generate`.

    Raises:
        AutoDDLError: the plan can't be written in this dialect, or the file can't be written.
    """
    text = generate(plan, dialect, learning_rate=learning_rate)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise AutoDDLError(f"codegen: {path}: {error.strerror}; give a path to write to") from None


def _in_one_op(plan: PlanValue) -> PlanValue:
    """Return a plan of the program in which each BatchNorm and dropout is one op, stage by stage."""
    whole, stage_of = in_one_dropout(in_one_op(plan.layout)), plan.stage_of
    program, renamed = whole.program, renamed_in_one(plan.program)

    def reads(item: Redistribution) -> int:
        op = item.readers[0][0]
        return stage_of[program.producer[item.tensor].name if op == OUTPUT else op]

    def own(known: Mapping[str, _T], number: int) -> Mapping[str, _T]:
        return {name: value for name, value in known.items() if stage_of.get(name) == number}

    parts = []
    for number, part in enumerate(plan.parts):
        states = own(whole.variables, number), own(whole.inputs, number)
        here = [item for item in whole.redistributions if reads(item) == number]
        arrivals = (replace(t, tensor=renamed.get(t.tensor, t.tensor)) for t in part.arrivals)
        known = tuple(t for t in arrivals if t.tensor in program.tensor)
        layout = Layout.of(program, own(whole.signatures, number), *states, here, whole.after)
        parts.append(replace(part, layout=layout, arrivals=known))
    return replace(plan, program=program, parts=tuple(parts))


def _content(plan: PlanValue, dialect: Dialect, learning_rate: float | None) -> ScriptContent:
    """Return what the script has to say; only the forward pass is text already."""
    program = plan.program
    inputs, top, optimizer = inputs_of(program), top_module(program), optimizer_of(program)
    groups, stages, loss_state = Groups(), None, None
    if len(plan.parts) > 1:
        check_stages(plan)
        stages = StageSections(plan, inputs, top)
        for number, stage in enumerate(stages.stages):
            write_section(
                stage.section, groups, dialect, f"stage_{number}", stage.argument_names,
                top=top, staged=True,
            )  # fmt: skip
    else:
        names = {item.tensor: item.name for item in inputs}
        section = _loss_section(plan, tuple(names))
        loss_state = section.state(section.results[0])
        write_section(section, groups, dialect, "loss_of", names, top=top)
    name_groups(groups, top, dialect.globals)
    functions = tuple(written(group, groups, top) for group in groups.groups)
    return ScriptContent(plan, inputs, top, optimizer, functions, stages, learning_rate, loss_state)


def _loss_section(plan: PlanValue, inputs: tuple[str, ...]) -> Section:
    program, state = plan.program, {item.name: item.state for item in plan.inputs}
    assert program.loss is not None
    ops, arguments = forward_ops(program), {tensor: state[tensor] for tensor in inputs}
    returned = program.loss in program.outputs
    loss = (
        Section(plan, ops, arguments, ()).output(program.loss) if returned else Value(program.loss)
    )
    return Section(plan, ops, arguments, (loss,))
