"""The script around the forward pass: placement, parameters, optimizer, checkpoints, main."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoddl.codegen import accumulation_text, pipeline_text, tables, text
from autoddl.codegen import lines as layout
from autoddl.codegen.body import Writer
from autoddl.codegen.expression import literal, sbp_text
from autoddl.codegen.facts import Input, inputs_of, optimizer_of, top_module
from autoddl.codegen.function import Groups
from autoddl.codegen.functions import name_groups, written
from autoddl.codegen.header import header
from autoddl.codegen.optimizers import optimizer_text
from autoddl.codegen.pipeline import stages_text
from autoddl.codegen.values import Section, Value, forward_ops
from autoddl.errors import AutoDDLError
from autoddl.plan import Plan
from autoddl.sbp.program import Program

MAX_LISTED_RANKS = 16
DEFAULT_LEARNING_RATES = {"SGD": 0.1, "Adam": 1e-3, "AdamW": 1e-3}


def generate(plan: Plan, *, learning_rate: float | None = None, checked: bool = False) -> str:
    """Return a plan as the text of a Python script that needs only OneFlow and NumPy.

    `learning_rate` is the default of the script's option (a captured graph does not tell it). With
    `checked` the script tests after each op that OneFlow has made the planned state.

    Raises:
        AutoDDLError: the plan has no program; states that OneFlow has not; ops without a template.
    """
    program = _program(plan)
    inputs, top = inputs_of(program), top_module(program)
    optimizer = optimizer_of(program)
    rate = learning_rate or DEFAULT_LEARNING_RATES[optimizer.kind if optimizer else "SGD"]
    pipeline = plan.pipeline
    if pipeline is not None and pipeline.stages > 1:
        head, functions, run = stages_text(plan, pipeline, inputs, top, checked=checked)
        fixed: Any = pipeline_text
    else:
        groups = Groups()
        _whole(plan, program, inputs, top, groups, checked)
        name_groups(groups, top)
        head = _tables(plan, program, inputs, top)
        functions = [written(group, groups, top) for group in groups.groups]
        run, fixed = text.STEP_TEXT, text
        if pipeline is not None and pipeline.micro_batches > 1:
            run, fixed = accumulation_text.STEP_TEXT, accumulation_text
    random = any(op.type == "dropout" for op in program.ops)
    parts = [
        head,
        fixed.BATCH_TEXT,
        *([text.PART_TEXT] if any("part(p" in function for function in functions) else []),
        *([text.CHECK_TEXT] if checked else []),
        *functions,
        optimizer_text(optimizer, top, stages=fixed is pipeline_text, idle=_has_idle_stage(plan)),
        run,
        fixed.CHECKPOINT_TEXT,
        text.main_text(fixed.MAIN_TEXT, float(rate), optimizer, random=random),
    ]
    body = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    return header(plan, body, top) + body


def _has_idle_stage(plan: Plan) -> bool:
    """Tell whether some stage trains no parameter."""
    if plan.pipeline is None or plan.program is None:
        return False
    stage_of = plan.pipeline.stage_of
    trained = {stage_of[p.tensor] for p in plan.program.parameters if p.update is not None}
    return len(trained) < plan.pipeline.stages


def _program(plan: Plan) -> Program:
    """Return the plan's program, after a look at what can't be written."""
    if plan.program is None:
        raise AutoDDLError(
            "codegen: the plan was saved without its program; plan again with autoddl.optimize"
        )
    if plan.program.loss is None:
        raise AutoDDLError(
            "codegen: the graph has no loss; call loss.backward() in build() and add an optimizer"
        )
    states = [*plan.variables.items(), *((i.name, i.state) for i in plan.inputs)]
    for op, signature in plan.signatures.items():
        states += [(f"{operand} of {op}", state) for operand, state in signature.items()]
    for where, state in states:
        if any(s.turn or s.stride for s in state) or any(
            s.is_partial and s.reduction != "sum" for s in state
        ):
            raise AutoDDLError(
                f"codegen: {where} is in state {state}; OneFlow has S(dim) in the mesh's order, B and "
                "P(sum) only: plan with engine='oneflow'"
            )
    return plan.program


def _whole(
    plan: Plan, program: Program, inputs: Sequence[Input], top: str, groups: Groups, checked: bool
) -> Writer:
    """Write the whole forward pass into `groups`."""
    state = {item.name: item.state for item in plan.inputs}
    assert program.loss is not None
    ops = forward_ops(program)
    arguments = {item.tensor: state[item.tensor] for item in inputs}
    probe = Section(plan, ops, arguments, ())
    outputs = [probe.output(tensor) for tensor in program.outputs]
    loss = next((v for v in outputs if v.tensor == Value(program.loss).tensor), Value(program.loss))
    results = dict.fromkeys([loss, *outputs])
    writer = Writer(Section(plan, ops, arguments, results), groups, top=top, checked=checked)
    writer.write("loss_of", {item.tensor: item.name for item in inputs})
    return writer


def _tables(plan: Plan, program: Program, inputs: Sequence[Input], top: str) -> str:
    """Return placement, parameters and inputs as tables."""
    mesh, pipeline = plan.mesh, plan.pipeline
    ranks = str(np.arange(mesh.size).reshape(mesh.shape).tolist())
    if mesh.size > MAX_LISTED_RANKS:
        ranks = f"np.arange({mesh.size}).reshape({', '.join(map(str, mesh.shape))}).tolist()"
    lines = [
        "B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split",
        f'DEVICE = "{program.device}"',
        f"RANKS = {ranks}  # mesh {mesh.describe()}",
        "PLACEMENT = flow.placement(DEVICE, RANKS)",
        *([f"MICRO_BATCHES = {pipeline.micro_batches}  # of a step"] if pipeline else []),
        f"WHOLE = [{', '.join('B' * mesh.ndim)}]  # every device has the whole tensor",
    ]
    for name, note, trained in (
        ("PARAMETERS", "Parameters by their names in the model: state, # shape.", True),
        ("BUFFERS", "What is not trained: buffers and frozen parameters.", False),
    ):
        prefix = f"{top}." if top else ""
        chosen = [p.tensor for p in program.parameters if (p.update is not None) == trained]
        found = [tables.row(plan, program, tensor, prefix) for tensor in chosen]
        lines += tables.variables(name, note, found)
    state = {item.name: item.state for item in plan.inputs}
    rows: list[str] = []
    for item in inputs:
        facts = (
            f'({literal(item.shape)}, "{item.dtype}", {sbp_text(state[item.tensor])}, {item.below})'
        )
        rows += layout.entry(f'"{item.name}": ', facts)
    lines += layout.table(
        "INPUTS", "Inputs: shape, dtype, state, and what whole numbers are below.", rows
    )
    return "\n".join(lines)
