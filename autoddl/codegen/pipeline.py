"""The script of a plan with stages: strict 1F1B with sends and receives between ranks."""

from __future__ import annotations

import inspect

from autoddl.codegen import lines as layout
from autoddl.codegen import order, pipeline_text, tables
from autoddl.codegen.body import Writer
from autoddl.codegen.expression import literal, sbp_text
from autoddl.codegen.facts import Input
from autoddl.codegen.function import Groups
from autoddl.codegen.functions import name_groups, written
from autoddl.codegen.stages import Stage, Stages, check_pipeline, tensors_of
from autoddl.plan import Pipeline, Plan


def stages_text(
    plan: Plan, pipeline: Pipeline, inputs: tuple[Input, ...], top: str, *, checked: bool
) -> tuple[str, list[str], str]:
    """Return the script's tables, its forward functions, and what runs the stages."""
    check_pipeline(plan, pipeline)
    stages, groups = Stages(plan, pipeline, inputs, top), Groups()
    for number, stage in enumerate(stages.stages):
        writer = Writer(stage.section, groups, top=top, checked=checked, inline_top=True)
        writer.write(f"stage_{number}", _own_names(stage))
    name_groups(groups, top)
    functions = [written(group, groups, top) for group in groups.groups]
    names = [f"stage_{number}" for number in range(pipeline.stages)]
    table = layout.entry("FORWARD = ", f"[{', '.join(names)}]", indent=0)
    forward = "\n".join([*table[:-1], table[-1].rstrip(",")])
    step = pipeline_text.STEP_TEXT.strip().replace("FORWARD = [STAGE_FUNCTIONS]", forward)
    if not pipeline.recomputed:
        step = pipeline_text.without_recomputation(step)
    run = "\n\n\n".join(
        [
            *(inspect.getsource(f).rstrip() for f in (order.one_f_one_b, order.rendezvous_order)),
            step,
        ]
    )
    return _tables(stages), functions, run


def _own_names(stage: Stage) -> dict[str, str]:
    """Return how a stage's function calls its arguments: x what alone comes from another stage."""
    names = dict(stage.arguments)
    arrived = [t for t in names if t in stage.section.program.producer]
    if len(arrived) == 1 and "x" not in names.values():
        names[arrived[0]] = "x"
    return names


def _tables(stages: Stages) -> str:
    plan, pipeline = stages.plan, stages.pipeline
    size = plan.mesh.size
    shape = ", ".join(map(str, (pipeline.stages, *plan.mesh.shape)))
    lines = [
        "B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split",
        f'DEVICE = "{plan.device}"',
        f"STAGES = {pipeline.stages}",
        f"MICRO_BATCHES = {pipeline.micro_batches}  # of a step",
        f"RANKS_PER_STAGE = {size}",
        f"RANKS = np.arange({size * pipeline.stages}).reshape({shape})  # mesh {plan.mesh.describe()}",
        "PLACEMENTS = [flow.placement(DEVICE, ranks.tolist()) for ranks in RANKS]",
        "STAGE = flow.env.get_rank() // RANKS_PER_STAGE  # of this rank",
        f"WHOLE = [{', '.join('B' * plan.mesh.ndim)}]  # every device has the whole tensor",
    ]
    if pipeline.recomputed:
        again = sorted(set(pipeline.recomputed))
        lines += [
            f"RECOMPUTED = {again}  # stages that keep no activations: they compute them twice"
        ]
    note = "Parameters by their names in the model: (stage, state), # shape."
    lines += tables.variables("PARAMETERS", note, _rows(stages, trained=True))
    note = "What is not trained, likewise."
    lines += tables.variables("BUFFERS", note, _rows(stages, trained=False))
    comment = "Inputs of a micro-batch: stage, shape, dtype, state, what whole numbers are below."
    lines += layout.table("INPUTS", comment, _inputs(stages))
    lines += ["", "# What goes from stage to stage: name, from, to, shape, dtype, state."]
    lines += ["TRANSFERS = [", *_transfers(stages), "]"]
    lines += ["", "# Arguments and results of the stages' functions."]
    for name, rows in (
        ("ARGUMENTS", [list(stage.arguments.values()) for stage in stages.stages]),
        ("RESULTS", [list(stage.results) for stage in stages.stages]),
    ):
        lines += [f"{name} = ["]
        for row in rows:
            lines += layout.entry("", f"[{', '.join(f'{chr(34)}{item}{chr(34)}' for item in row)}]")
        lines += ["]"]
    return "\n".join(lines)


def _inputs(stages: Stages) -> list[str]:
    state = {item.name: item.state for item in stages.plan.inputs}
    rows = []
    for item in stages.inputs:
        parts = [str(stages.stage_of(item.tensor)), literal(item.shape), f'"{item.dtype}"']
        parts += [sbp_text(state[item.tensor]), str(item.below)]
        rows += layout.entry(f'"{item.name}": ', f"({', '.join(parts)})")
    return rows


def _transfers(stages: Stages) -> list[str]:
    rows = []
    for sent in stages.sent:
        tensor = stages.program.tensor[sent.transfer.tensor]
        parts = [
            f'"{sent.name}"',
            str(sent.source),
            str(sent.transfer.target),
            literal(tensor.shape),
        ]
        parts += [f"flow.{tensor.dtype}", sbp_text(sent.state)]
        rows += layout.entry("", f"({', '.join(parts)})")
    return rows


def _rows(stages: Stages, *, trained: bool) -> list[tables.Row]:
    prefix = f"{stages.top}." if stages.top else ""
    return [
        tables.row(stages.plan, stages.program, tensor, prefix, number)
        for number in range(stages.pipeline.stages)
        for tensor in tensors_of(stages.program, stages, number, trained=trained)
    ]
