"""What is planned: a program, the ranks that run, and the options of `optimize`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from autoddl.calls import callback, uncollected
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.engine.model import EngineModel
from autoddl.errors import AutoDDLError, InfeasibleError, near, shown
from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp
from autoddl.terminal.status_line import working

if TYPE_CHECKING:
    from autoddl.planner.plan_options import Options
    from autoddl.planner.request import Request


@dataclass(frozen=True)
class AskedPlan:
    """What to plan and how: a program, the ranks that run, if any do, and options.

    The graph accumulates gradients over so many micro-batches itself. Variables that are `held` in some
    states stay in these.
    """

    program: Program
    options: Options
    ranks: tuple[int, int] | None = None
    accumulated: int = 1
    held: Mapping[str, str] = field(default_factory=dict)

    def pinned(self, states: Mapping[str, NdSbp], mesh: Sequence[int] | None = None) -> AskedPlan:
        """Return the same with variables fixed to the states in which they are held, on a mesh."""
        own = {p.tensor for p in self.program.parameters} - dict(self.program.constants).keys()
        held = {name: str(states[name]) for name in sorted(own & states.keys())}
        return replace(
            self, options=replace(self.options, mesh=self.options.mesh or mesh), held=held
        )

    def best(self, model: EngineModel, count: int) -> tuple[PlanValue, ...]:
        """Return up to so many plans, the best first; see `choose.best`."""
        from autoddl.planner import choose

        silent = self.options.progress is not None
        with uncollected(), nullcontext() if silent else working("planning"):
            return choose.best(self.request(model, self.program, self.options), count)

    def request(self, model: EngineModel, program: Program, options: Options) -> Request:
        """Return the request that options make for a program on these ranks."""
        from autoddl.planner import request

        engine = engines.load(model.name) if model.name else None
        ask = engine.signatures if engine and engine.installed() else None
        return request.read(
            program,
            options,
            self.ranks,
            engine=model,
            ask=ask,
            accumulated=self.accumulated,
            held=self.held,
        )

    def best_or_why_not(self, model: EngineModel) -> PlanValue:
        """Return the best plan; where none fits into memory the error says what would help."""
        try:
            return self.best(model, 1)[0]
        except InfeasibleError as error:
            from autoddl.remedies.doctor import explained

            def plan(program: Program, changes: Mapping[str, Any]) -> PlanValue:
                options = replace(self.options, **changes)
                return replace(self, program=program, options=options).best(model, 1)[0]

            with catch_warnings():
                simplefilter("ignore")  # they were told before
                request = self.request(model, self.program, self.options)
            raise explained(error, request, self.options, plan) from None


def asked_of(
    graph: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any], given: Mapping[str, Any]
) -> AskedPlan:
    """Return what is to be planned, with those of the options that are given: as `optimize`."""
    from autoddl.planner.plan_options import Options

    names = [each.name for each in fields(Options)]
    options = Options(**{name: given[name] for name in names if name in given})
    if options.progress is not None:
        options = replace(options, progress=callback(options.progress))
    _check_words(graph, kwargs, names)
    if isinstance(graph, Program | str | Path):
        return AskedPlan(graph if isinstance(graph, Program) else Program.load(graph), options)
    oneflow = engines.load(ONEFLOW)
    if not oneflow.installed():
        raise AutoDDLError(
            f"optimize: got {type(graph).__name__}, and OneFlow is not installed; give a Program or "
            "the path of a saved one, or pip install 'autoddl[oneflow]'"
        )
    program = oneflow.capture(graph, *inputs, **kwargs)
    asked = AskedPlan(program, options, oneflow.cluster(), oneflow.accumulation_steps(graph))
    held = oneflow.held(graph)  # by a step that trains these parameters
    return asked if held is None else asked.pinned(held[1], held[0])


def _check_words(graph: Any, words: Collection[str], options: Sequence[str]) -> None:
    """Raise AutoDDLError for a word that is no option, and no input that the graph takes."""
    taken: Collection[str] = ()
    if not isinstance(graph, Program | str | Path):
        found = signature(getattr(graph, "build", lambda **_: None)).parameters
        taken = words if any(p.kind is p.VAR_KEYWORD for p in found.values()) else found
    for word in (each for each in words if each not in taken):
        inputs = f"inputs are {', '.join(taken)}" if taken else "it has no inputs"
        hint = near(word, (*options, "engine", "trials"))
        raise AutoDDLError(f"optimize: got {shown(word)}, which is no option; {inputs}{hint}")
