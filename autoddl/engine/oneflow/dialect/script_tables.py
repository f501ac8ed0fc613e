"""Tables of a script: devices, states of parameters and inputs, what goes between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap

import numpy as np

from autoddl.codegen.dialect import ScriptContent
from autoddl.codegen.source import folded_tables
from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import literal, quoted
from autoddl.codegen.stage_sections import StageSections
from autoddl.engine.oneflow.dialect.runtime_source import functions_of
from autoddl.engine.oneflow.dialect.terms import dtype_text, sbp_text
from autoddl.plan.parts import Part
from autoddl.plan.value import PlanValue
from autoddl.sbp.state import NdSbp

MAX_LISTED_RANKS = 16
_TASKS_WIDTH = 90  # of a line of a stage's tasks
StateText = Callable[[NdSbp], str]
_NAMES = "B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split"

# The names that a script has besides those of the model's functions and repeated tables.
_IMPORTS = {"argparse", "itertools", "logging", "np", "flow", "F"}
_FUNCTIONS = {
    "actions", "as_global", "as_whole", "batches", "boxes", "compute", "exchange", "inside",
    "load_parameters", "main", "make_optimizer", "make_schedule", "move", "noted", "one_f_one_b",
    "part",
    "rendezvous_order", "routes", "run_backward", "run_forward", "save_checkpoint", "train_step",
    "transfer_boxes", "update", "whole_batch_norm", "whole_where_partial",
}  # fmt: skip
_TABLES = {
    "ARGUMENTS", "B", "BUFFERS", "DEVICE", "DONE", "FORWARD", "INPUTS", "MICRO_BATCHES", "ORDER", "P",
    "PARAMETERS", "PLACEMENT", "PLACEMENTS", "RANKS", "RECOMPUTED", "RESULTS", "ROUTES", "S",
    "STAGE", "STAGES", "TASKS", "TRANSFERS", "WHOLE",
}  # fmt: skip
_MISTAKABLE = {"INPUT", "RANK"}  # not there, but too like those that are

GLOBALS = frozenset(_IMPORTS | _FUNCTIONS | _TABLES | _MISTAKABLE)


STAGE = "STAGE = [flow.env.get_rank() in np.ravel(ranks) for ranks in RANKS].index(True)  # of this rank"


def tables(content: ScriptContent) -> str:
    if content.stages is None:
        return "\n".join(_whole(content))
    placements = "PLACEMENTS = [flow.placement(DEVICE, ranks) for ranks in RANKS]"
    return "\n".join([_NAMES, *staged(content, content.stages, sbp_text, [placements, STAGE])])


def ordering(plan: PlanValue) -> list[str]:
    """Return the functions that make the order of a script's tasks."""
    if plan.orders:
        return [functions_of("staged_model", "actions")]
    pipeline = "autoddl.perfmodel.pipeline"
    return [
        functions_of(f"{pipeline}.one_f_one_b", "one_f_one_b"),
        functions_of(f"{pipeline}.rendezvous", "rendezvous_order"),
    ]


def orders(stages: StageSections) -> str:
    """Return the functions of the stages, in which order each works, and where it notes that."""
    names = [f"stage_{number}" for number in range(len(stages.stages))]
    table = layout.entry("FORWARD = ", f"[{', '.join(names)}]", indent=0)
    return "\n".join(
        [
            *table[:-1],
            table[-1].rstrip(","),
            *_turns(stages),
            "ROUTES = routes()",
            "DONE = []  # what this stage did in the last step, in order: F0, F0>1 (sent), B0<1, B0, …",
        ]
    )


def _turns(stages: StageSections) -> list[str]:
    """Return the lines that say in which order stages do their tasks."""
    plan, pairs = stages.plan, "sorted({row[1:3] for row in TRANSFERS})"
    if not plan.orders:
        planned = {(source, target) for turn, source, target in plan.links if turn == "F"}
        if planned != {(sent.source, sent.transfer.target) for sent in stages.sent}:
            pairs = literal(sorted(planned))  # some carry what the loss does not depend on
        return [
            "ORDER = rendezvous_order(",
            "    [one_f_one_b(stage, STAGES, MICRO_BATCHES) for stage in range(STAGES)],",
            f"    {pairs},",
            ")",
        ]
    rows = [wrap(text, _TASKS_WIDTH) for text in plan.tasks.written]
    lines = [
        f"    {quoted(line)}" if number < len(row) else f"    {quoted(line)},"
        for row in rows
        for number, line in enumerate((f"{each} " for each in row), 1)
    ]
    return [
        "TASKS = [  # of each stage, in order", *lines, "]",
        "ORDER = [actions(stage, text) for stage, text in enumerate(TASKS)]",
    ]  # fmt: skip


def _whole(content: ScriptContent) -> list[str]:
    plan, mesh = content.plan, content.plan.mesh
    of_mesh = ranks(plan.parts[0])
    return [
        _NAMES,
        f"DEVICE = {quoted(plan.device)}",
        f"RANKS = {of_mesh}  # mesh {layout.prose(mesh.describe())}",
        "PLACEMENT = flow.placement(DEVICE, RANKS)",
        *micro_batches(plan),
        f"WHOLE = [{', '.join('B' * mesh.ndim)}]  # every device has the whole tensor",
        *variables(
            content,
            sbp_text,
            "Parameters by their names in the model: state, # shape.",
            "What is not trained: buffers and frozen parameters.",
        ),
        *inputs(
            content, sbp_text, "Inputs: shape, dtype, state, and what whole numbers are below."
        ),
    ]


def micro_batches(plan: PlanValue) -> list[str]:
    """Return the line of a table of a plan without stages that says how many there are, if several."""
    return [f"MICRO_BATCHES = {plan.micro_batches}  # of a step"] if plan.pipelined else []


def staged(
    content: ScriptContent, stages: StageSections, state_text: StateText, places: Sequence[str]
) -> list[str]:
    """Return the tables of a script with stages; `places` are lines about the devices of these."""
    plan, count = content.plan, len(stages.stages)
    again = [number for number, part in enumerate(plan.parts) if part.recomputed]
    note = "  # stages that keep no activations: they compute them twice"
    return [
        f"DEVICE = {quoted(plan.device)}",
        f"STAGES = {count}",
        f"MICRO_BATCHES = {plan.micro_batches}  # of a step",
        "RANKS = [  # by stage",
        *(f"    {ranks(p)},  # mesh {layout.prose(p.mesh.describe())}" for p in plan.parts),
        "]",
        *places,
        *([f"RECOMPUTED = {again}{note}"] if again else []),
        *variables(
            content,
            state_text,
            "Parameters by their names in the model: (stage, state), # shape.",
            "What is not trained, likewise.",
        ),
        *inputs(
            content,
            state_text,
            "Inputs of a micro-batch: stage, shape, dtype, state, what whole numbers are below.",
        ),
        "",
        "# What goes from stage to stage: name, from, to, shape, dtype, states there and here.",
        *_list("TRANSFERS", _transfers(stages, state_text)),
        "",
        "# Arguments and results of the stages' functions.",
        *_list("ARGUMENTS", [literal([*stage.arguments.values()]) for stage in stages.stages]),
        *_list("RESULTS", [literal([*stage.results]) for stage in stages.stages]),
    ]


def variables(
    content: ScriptContent, state_text: StateText, trained: str, others: str
) -> list[str]:
    """Return the tables of what is trained and what is not, with these comments."""
    plan, program, stages = content.plan, content.plan.program, content.stages
    prefix = f"{content.top}." if content.top else ""
    lines: list[str] = []
    for name, note in (("PARAMETERS", trained), ("BUFFERS", others)):
        rows = [
            folded_tables.VariableRow(
                tensor[len(prefix) :],
                state_text(plan.variables[tensor]),
                literal(program.tensor[tensor].shape),
                None if stages is None else stages.stage_of(tensor),
            )
            for tensor in (p.tensor for p in program.parameters)
            if (program.parameter[tensor].update is not None) == (name == "PARAMETERS")
        ]
        rows.sort(key=lambda row: row.stage or 0)
        lines += folded_tables.variables(name, note, rows, GLOBALS)
    return lines


def inputs(content: ScriptContent, state_text: StateText, note: str) -> list[str]:
    state = {item.name: item.state for item in content.plan.inputs}
    rows = []
    for item in content.inputs:
        where = [] if content.stages is None else [literal(content.stages.stage_of(item.tensor))]
        facts = [literal(item.shape), quoted(item.dtype), state_text(state[item.tensor])]
        value = f"({', '.join([*where, *facts, literal(item.below)])})"
        rows += layout.entry(f"{quoted(item.name)}: ", value)
    return layout.table("INPUTS", note, rows)


def _transfers(stages: StageSections, state_text: StateText) -> list[str]:
    """Return a row for each tensor that goes from one stage to another."""
    rows = []
    for sent in stages.sent:
        tensor = stages.program.tensor[sent.transfer.tensor]
        ends = [literal(sent.source), literal(sent.transfer.target)]
        kind = [literal(tensor.shape), dtype_text(tensor.dtype).text]
        states = [state_text(sent.state), state_text(sent.arrival)]
        rows.append(f"({', '.join([quoted(sent.name), *ends, *kind, *states])})")
    return rows


def ranks(part: Part) -> str:
    """Return the ranks of a part, nested as its mesh is."""
    first, size, shape = part.ranks[0], part.mesh.size, part.mesh.shape
    if size <= MAX_LISTED_RANKS:
        return str(np.array(part.ranks).reshape(shape).tolist())
    row = f"np.array({list(part.ranks)})"
    if part.ranks == tuple(range(first, first + size)):
        row = f"np.arange({f'{first}, ' if first else ''}{first + size})"
    return f"{row}.reshape({', '.join(map(str, shape))}).tolist()"


def _list(name: str, rows: list[str]) -> list[str]:
    return [f"{name} = [", *(line for row in rows for line in layout.entry("", row)), "]"]
