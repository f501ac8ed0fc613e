"""Scripts that test the state of what each op makes, one op a line: OneFlow's with other templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autoddl.codegen.dialect import ScriptContent
from autoddl.codegen.source.expression import Expr, quoted
from autoddl.codegen.templates import ScriptOp, Template
from autoddl.engine.oneflow.dialect.op_templates import TEMPLATES
from autoddl.engine.oneflow.dialect.script_dialect import OneFlowDialect
from autoddl.engine.oneflow.dialect.terms import sbp_text

EXPECT = '''\
UNPLANNED = []


def expect(tensor, sbp, op):
    """Return a tensor, and note where OneFlow has chosen another state than the plan."""
    if tuple(tensor.sbp) != tuple(sbp):
        UNPLANNED.append((op, str(tensor.sbp), str(sbp)))
    return tensor'''


def expecting(write: Callable[[ScriptOp], Expr]) -> Callable[[ScriptOp], Expr]:
    """Return what writes an op inside of a call of `expect`."""

    def written(op: ScriptOp) -> Expr:
        state = sbp_text(op.states[op.output])
        return Expr(f"expect({write(op).text}, {state}, {quoted(op.op.name)})")

    return written


class CheckedDialect(OneFlowDialect):
    templates: Mapping[str, Template] = {
        kind: replace(template, write=expecting(template.write), inline=False)
        for kind, template in TEMPLATES.items()
    }
    globals = OneFlowDialect.globals | {"expect", "UNPLANNED"}

    def script(self, content: ScriptContent) -> str:
        return super().script(content).replace("\n\n\ndef main(", f"\n\n\n{EXPECT}\n\n\ndef main(")
