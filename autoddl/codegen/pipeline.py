"""The script of a plan with stages: strict 1F1B with sends and receives between ranks."""

from __future__ import annotations

import inspect

import numpy as np

from autoddl.codegen import order, pipeline_text
from autoddl.codegen.body import Groups, Writer
from autoddl.codegen.expression import literal, sbp_text
from autoddl.codegen.facts import Input
from autoddl.codegen.functions import name_groups, written
from autoddl.codegen.stages import Stages, check_pipeline, tensors_of
from autoddl.plan import Pipeline, Plan


def stages_text(
    plan: Plan, pipeline: Pipeline, inputs: tuple[Input, ...], top: str, *, checked: bool
) -> tuple[str, list[str], str]:
    """Return the script's tables, its forward functions, and what runs the stages."""
    check_pipeline(plan, pipeline)
    stages, groups = Stages(plan, pipeline, inputs, top), Groups()
    for number, stage in enumerate(stages.stages):
        writer = Writer(stage.section, groups, top=top, checked=checked, inline_top=True)
        writer.write(f"stage_{number}", stage.arguments)
    name_groups(groups, top)
    functions = [written(group, groups, top) for group in groups.groups]
    names = ", ".join(f"stage_{number}" for number in range(pipeline.stages))
    run = "\n\n\n".join(
        [
            *(inspect.getsource(f).rstrip() for f in (order.one_f_one_b, order.rendezvous_order)),
            pipeline_text.STEP_TEXT.strip().replace("STAGE_FUNCTIONS", names),
        ]
    )
    return _tables(stages), functions, run


def _tables(stages: Stages) -> str:
    plan, pipeline = stages.plan, stages.pipeline
    size = plan.mesh.size
    ranks = np.arange(size * pipeline.stages).reshape(pipeline.stages, *plan.mesh.shape).tolist()
    lines = [
        "B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split",
        f'DEVICE = "{plan.device}"',
        f"STAGES = {pipeline.stages}",
        f"MICRO_BATCHES = {pipeline.micro_batches}  # of a step",
        f"RANKS_PER_STAGE = {size}  # mesh {plan.mesh.describe()}",
        "STAGE = flow.env.get_rank() // RANKS_PER_STAGE  # of this rank",
        "PLACEMENTS = [",
        *(f"    flow.placement(DEVICE, {mesh})," for mesh in ranks),
        "]",
        f"WHOLE = [{', '.join('B' * plan.mesh.ndim)}]  # every device has the whole tensor",
    ]
    lines += _table("PARAMETERS", "Parameters by name: stage, state, # shape.", _rows(stages, True))
    lines += _table("BUFFERS", "What is not trained, likewise.", _rows(stages, False))
    state = {item.name: item.state for item in plan.inputs}
    facts = [
        f'    "{i.name}": ({stages.stage_of(i.tensor)}, {literal(i.shape)}, "{i.dtype}", '
        f"{sbp_text(state[i.tensor])}, {i.below}),"
        for i in stages.inputs
    ]
    comment = "Inputs of a micro-batch: stage, shape, dtype, state, what whole numbers are below."
    lines += _table("INPUTS", comment, facts)
    lines += [
        "",
        "# What goes from stage to stage: name, from, to, shape, dtype, state.",
        "TRANSFERS = [",
    ]
    for sent in stages.sent:
        tensor = stages.program.tensor[sent.transfer.tensor]
        row = f'"{sent.name}", {sent.source}, {sent.transfer.target}, {literal(tensor.shape)}'
        lines.append(f"    ({row}, flow.{tensor.dtype}, {sbp_text(sent.state)}),")
    lines += ["]"]
    lines += ["", "# Arguments and results of the stages' functions."]
    for name, rows in (
        ("ARGUMENTS", [list(stage.arguments.values()) for stage in stages.stages]),
        ("RESULTS", [list(stage.results) for stage in stages.stages]),
    ):
        lines += [f"{name} = [", *(f"    {_strings(row)}," for row in rows), "]"]
    return "\n".join(lines)


def _strings(names: list[str]) -> str:
    return f"[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}]"


def _rows(stages: Stages, trained: bool) -> list[str]:
    prefix = f"{stages.top}." if stages.top else ""
    rows = []
    for number in range(stages.pipeline.stages):
        for tensor in tensors_of(stages.program, stages, number, trained=trained):
            shape = literal(stages.program.tensor[tensor].shape)
            state = sbp_text(stages.plan.variables[tensor])
            rows.append(f'    "{tensor[len(prefix) :]}": ({number}, {state}),  # {shape}')
    return rows


def _table(name: str, comment: str, rows: list[str]) -> list[str]:
    return ["", f"# {comment}", *([f"{name} = {{", *rows, "}"] if rows else [f"{name} = {{}}"])]
