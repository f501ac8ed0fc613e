"""OneFlow's scripts put together: tables of states, the model's functions, the loop around them.

What does not depend on the plan are functions of the modules in `runtime`, copied from their source.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.codegen.dialect import Axes, Dialect, ScriptContent
from autoddl.codegen.source.expression import Expr
from autoddl.codegen.templates import Template
from autoddl.engine.oneflow.dialect import script_tables, terms
from autoddl.engine.oneflow.dialect.op_templates import TEMPLATES
from autoddl.engine.oneflow.dialect.optimizer_text import optimizer_text, schedule_text
from autoddl.engine.oneflow.dialect.runtime_source import called, functions_of
from autoddl.engine.oneflow.dialect.script_frame import header, main_function
from autoddl.errors import AutoDDLError
from autoddl.plan.value import PlanValue
from autoddl.sbp.state import NdSbp


def check_states(plan: PlanValue) -> None:
    """Raise AutoDDLError where axes cut in another order than the mesh's, or sums are none."""
    states = [*plan.variables.items(), *((i.name, i.state) for i in plan.inputs)]
    for op, signature in plan.signatures.items():
        states += [(f"{operand} of {op}", state) for operand, state in signature.items()]
    for where, state in states:
        if any(s.turn or (s.is_partial and s.reduction != "sum") for s in state):
            raise AutoDDLError(
                f"codegen: {where} is in state {state}; scripts have S(dim) in the mesh's order, B and "
                "P(sum) only: plan with engine='oneflow' or engine='script'"
            )


class OneFlowDialect:
    """See Dialect."""

    templates: Mapping[str, Template] = TEMPLATES
    globals: frozenset[str] = script_tables.GLOBALS

    def check(self, plan: PlanValue) -> None:
        """Raise AutoDDLError where a plan has states that OneFlow has not."""
        check_states(plan)

    def placement(self, *, staged: bool) -> Expr:
        return Expr("PLACEMENTS[STAGE]" if staged else "PLACEMENT")

    def boxed(
        self, value: Expr, before: NdSbp, after: NdSbp, *, trained: bool, late: Axes = (),
        grouped: bool = False,
    ) -> Expr:  # fmt: skip
        return terms.boxed(value, before, after, trained=trained)

    def read(self, value: Expr, axes: Axes) -> Expr:
        return value

    def pinned(self, value: Expr, state: NdSbp) -> Expr:
        """Return `value.to_global(…)` with the same state for the gradient."""
        goal = terms.sbp_text(state)
        return Expr(f"{value.atom}.to_global(sbp={goal}, grad_sbp={goal})")

    def script(self, content: ScriptContent) -> str:
        staged = content.stages is not None
        model = "staged_model" if staged else "whole_model"
        parts = [
            script_tables.tables(content),
            functions_of(model, "as_global", "as_whole"),
            *called(content.functions, _CALLED),
            *content.functions,
            optimizer_text(content.optimizer, content.top, stages=staged, idle=content.has_idle),
            *schedule_text(content.optimizer, idle=content.has_idle),
            *_step(content),
            functions_of(model, "load_parameters", "save_checkpoint"),
            functions_of(model, "batches"),
            main_function(content),
        ]
        body = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
        return header(content.plan, body, content.top) + body


_CALLED = {"part": "module_parameters", "whole_batch_norm": "batch_statistics"}
"""The functions that only some models' functions call, and their modules."""


def _step(content: ScriptContent) -> list[str]:
    """Return what runs a step: all at once, micro-batch by micro-batch, or in stages."""
    if content.stages is None:
        module = "accumulated_step" if content.plan.micro_batches > 1 else "whole_model"
        return [functions_of(module, "train_step")]
    again = any(part.recomputed for part in content.plan.parts)
    passes = (
        functions_of("recomputed_stages", "compute", "run_forward", "run_backward")
        if again
        else functions_of("staged_model", "run_forward", "run_backward")
    )
    return [
        *script_tables.ordering(content.plan),
        functions_of("autoddl.codegen.transfer_boxes", "transfer_boxes"),
        functions_of("staged_model", "boxes", "inside", "routes"),
        script_tables.orders(content.stages),
        functions_of("staged_model", "whole_where_partial", "move", "exchange"),
        passes,
        functions_of("staged_model", "noted", "train_step"),
    ]


DIALECT: Dialect = OneFlowDialect()
