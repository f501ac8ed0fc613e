"""The script around the forward pass: placement, parameters, optimizer, checkpoints, main."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoddl.codegen import accumulation_text, pipeline_text, text
from autoddl.codegen.body import Groups, Writer
from autoddl.codegen.expression import literal, sbp_text
from autoddl.codegen.facts import Input, inputs_of, optimizer_of, top_module
from autoddl.codegen.functions import name_groups, written
from autoddl.codegen.pipeline import stages_text
from autoddl.codegen.values import Section, Value, forward_ops
from autoddl.errors import AutoDDLError
from autoddl.plan import Plan
from autoddl.sbp.program import Program

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
        tables, functions, run = stages_text(plan, pipeline, inputs, top, checked=checked)
        fixed: Any = pipeline_text
    else:
        groups = Groups()
        _whole(plan, program, inputs, top, groups, checked)
        name_groups(groups, top)
        tables = _tables(plan, program, inputs, top)
        functions = [written(group, groups, top) for group in groups.groups]
        run, fixed = text.STEP_TEXT, text
        if pipeline is not None and pipeline.micro_batches > 1:
            run, fixed = accumulation_text.STEP_TEXT, accumulation_text
    parts = [
        tables,
        fixed.BATCH_TEXT,
        *([text.CHECK_TEXT] if checked else []),
        *functions,
        text.optimizer_text(optimizer, top, stages=fixed is pipeline_text),
        run,
        fixed.CHECKPOINT_TEXT,
        fixed.MAIN_TEXT.replace("LEARNING_RATE", literal(float(rate))),
    ]
    body = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    return text.header(plan, body) + body


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
    ranks = np.arange(plan.mesh.size).reshape(plan.mesh.shape).tolist()
    pipeline = plan.pipeline
    lines = [
        "B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split",
        f'DEVICE = "{program.device}"',
        f"RANKS = {ranks}  # mesh {plan.mesh.describe()}",
        "PLACEMENT = flow.placement(DEVICE, RANKS)",
        *([f"MICRO_BATCHES = {pipeline.micro_batches}  # of a step"] if pipeline else []),
        f"WHOLE = [{', '.join('B' * plan.mesh.ndim)}]  # every device has the whole tensor",
    ]
    prefix = f"{top}." if top else ""

    def table(name: str, comment: str, rows: list[str]) -> list[str]:
        return ["", f"# {comment}", *([f"{name} = {{", *rows, "}"] if rows else [f"{name} = {{}}"])]

    def rows(trained: bool) -> list[str]:
        chosen = [p.tensor for p in program.parameters if (p.update is not None) == trained]
        return [_row(plan, program, tensor, prefix) for tensor in chosen]

    lines += table(
        "PARAMETERS", "Parameters by their names in the model: state, # shape.", rows(True)
    )
    lines += table("BUFFERS", "What is not trained: buffers and frozen parameters.", rows(False))
    state = {item.name: item.state for item in plan.inputs}
    facts = [
        f'    "{i.name}": ({literal(i.shape)}, "{i.dtype}", {sbp_text(state[i.tensor])}, {i.below}),'
        for i in inputs
    ]
    lines += table(
        "INPUTS", "Inputs: shape, dtype, state, and what whole numbers are below.", facts
    )
    return "\n".join(lines)


def _row(plan: Plan, program: Program, tensor: str, prefix: str) -> str:
    shape = literal(program.tensor[tensor].shape)
    return f'    "{tensor[len(prefix) :]}": {sbp_text(plan.variables[tensor])},  # {shape}'
