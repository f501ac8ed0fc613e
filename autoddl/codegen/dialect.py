"""What an engine must write of a script: how ops, redistributions and everything around them look.

The forward pass is read from the plan here, engine or not: which modules become functions, how values
are called, which comment stands where. A dialect turns single ops and redistributions into expressions
and puts the whole together: tables of states, optimizer, checkpoints, the loop. OneFlow's is in
`autoddl.engine.oneflow.dialect`.

Example: of x in (S0, B) that a reader wants in (B, B) OneFlow's dialect makes
`x.to_global(sbp=[B, B], grad_sbp=[S(0), B])`; where it stands, that it is called x again, and
"(S0, B) → (B, B) for fc1: all-gather over axis 0, 1.0 KiB" is neutral.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from autoddl.codegen.optimizer_facts import Optimizer
from autoddl.codegen.script_facts import Input
from autoddl.codegen.source.expression import Expr
from autoddl.codegen.stage_sections import StageSections
from autoddl.codegen.templates import Template
from autoddl.plan.value import PlanValue
from autoddl.sbp.state import NdSbp

Axes: TypeAlias = Sequence[int]


@dataclass(frozen=True)
class ScriptContent:
    """What a script has to say.

    `functions` are the texts of those of the forward pass; `top` is the graph's attribute that has the
    model ("": several). `learning_rate` None leaves the default to the optimizer, or the dialect.
    `stages` is None where one function computes the loss, in `loss_state`.
    """

    plan: PlanValue
    inputs: tuple[Input, ...]
    top: str
    optimizer: Optimizer | None
    functions: tuple[str, ...]
    stages: StageSections | None
    learning_rate: float | None
    loss_state: NdSbp | None = None

    @property
    def has_idle(self) -> bool:
        """Tell whether some stage trains no parameter."""
        plan = self.plan
        if self.stages is None:
            return False
        trained = {plan.stage_of[p.tensor] for p in plan.program.parameters if p.update is not None}
        return len(trained) < len(plan.parts)


class Dialect(Protocol):
    """How an engine's scripts are written."""

    templates: Mapping[str, Template]
    """How ops are written, by their types."""
    globals: frozenset[str]
    """All names that scripts may define or import besides the model's functions and tables."""

    def check(self, plan: PlanValue) -> None:
        """Raise AutoDDLError where a plan has states that the engine can't say."""

    def placement(self, *, staged: bool) -> Expr:
        """Return the devices on which an op without inputs makes its output."""

    def boxed(
        self, value: Expr, before: NdSbp, after: NdSbp, *, trained: bool, late: Axes = (),
        grouped: bool = False,
    ) -> Expr:  # fmt: skip
        """Return a value in another state; with `trained` a gradient comes back through it.

        Over the axes that are `late` the gradient comes as summands. A gather, of the value or of its
        gradient, is a broadcast from each place where it is `grouped`.
        """

    def read(self, value: Expr, axes: Axes) -> Expr:
        """Return a value as an op reads it whose gradient is a summand on each place of some axes.

        The same where the engine adds up gradients by itself.
        """

    def pinned(self, value: Expr, state: NdSbp) -> Expr:
        """Return a value whose gradient comes in the dual of its state, too."""

    def script(self, content: ScriptContent) -> str:
        """Return the text of a whole script."""
