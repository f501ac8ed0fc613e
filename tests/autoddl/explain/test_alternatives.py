"""What other choices cost: against simulations of layouts, and against plans with that op pinned."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.explain.alternatives import (
    MEMORY,
    NO_BUDGET,
    NO_ROOM,
    NOTHING,
    Why,
    decider,
    text,
    why,
)
from autoddl.explain.asked import asked_for
from autoddl.explain.certainty import are_tied
from autoddl.explain.reopened import Reopened, reopened
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.perfmodel.timeline import StepTimeline
from autoddl.planner import request as requests
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Mesh
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.budget import Budget
from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.restriction import everything, restricted
from experiments.lib.oneflow_problems import build
from tests.autoddl.explain.plans import MESHES, PROGRAMS, planned, profile_for

build_problem = requests.build
SOME = Budget(evaluations=2_000)
MODULES = {
    "mlp": ["model.fc1", "model.fc2"],
    "transformer": ["model.blocks.0.fc1", "model.blocks.1.attention.proj", "model.token"],
    "large": ["model.blocks.0.fc1", "model.blocks.0.fc2", "model.head"],
    "attention": ["model.query", "model.output", "model.gate"],
    "cuda": ["model.blocks.0.fc1", "model.blocks.1.attention.qkv", "model.blocks.1.act"],
}
CASES = [(name, module) for name, modules in MODULES.items() for module in modules]
# Planned again: of each program one matmul, and what is none.
PLANNED_AGAIN = [
    ("mlp", "model.fc1"), ("transformer", "model.blocks.1.attention.proj"),
    ("transformer", "model.token"), ("large", "model.blocks.0.fc1"), ("attention", "model.gate"),
    ("cuda", "model.blocks.1.attention.qkv"), ("cuda", "model.blocks.1.act"),
]  # fmt: skip


def opened(name: str, **options: Any) -> Reopened:
    return reopened(planned(name, budget=SOME, **options), profile_for(name))


def signature(op_name: str, states: Any, program: Any) -> str:
    """Return a signature as a plan prints it."""
    op = program.op[op_name]
    ins, outs = (side for side in (op.inputs, op.outputs))
    return (
        f"{op.type}: {' × '.join(str(states[o]) for o, _ in ins)} → "
        f"{', '.join(str(states[o]) for o, _ in outs)}"
    )


def variable_of(problem: CostNetwork, told: Why, shown: str) -> tuple[int, int]:
    """Return the variable of an op and the choice whose signature is shown so."""
    columns = problem.variables
    (variable,) = [v for v in columns.where("op").tolist() if columns.name[v] == told.name]
    choices = columns.of(variable).choices
    (choice,) = [
        n for n, c in enumerate(choices) if signature(told.name, c, problem.program) == shown
    ]
    return variable, choice


@pytest.mark.parametrize(("name", "module"), CASES)
def test_with_the_rest_fixed_a_step_is_that_of_its_layout(name: str, module: str) -> None:
    """Op by op and boxing by boxing, by the simulation of layouts, in a problem that is made here."""
    plan, profile = planned(name, budget=SOME), profile_for(name)
    problem = build(PROGRAMS[name], Mesh.parse(MESHES.get(name, "2x2")), profile)
    columns = problem.variables
    wanted = {op: signature(op, states, plan.program) for op, states in plan.signatures.items()}
    point = []
    for kind, of, domain in zip(columns.kind, columns.name, columns.domain, strict=True):
        choices, sort = columns.domains[domain].choices, columns.kinds[kind]
        if sort == "op":
            shown = [signature(of, c, plan.program) for c in choices]
            point.append(shown.index(wanted[of]))
        elif sort == "output":
            point.append(0)
        else:
            kept = plan.layout.inputs if sort == "input" else plan.variables
            point.append([c["tensor"] for c in choices].index(kept[of]))
    for told in why(reopened(plan, profile), module, None):
        assert told.step_s == pytest.approx(plan.estimate.step_s)
        assert told.signature == wanted[told.name]
        assert len(told.others) == 3
        for other in told.others:
            variable, choice = variable_of(problem, told, other.signature)
            there = list(point)
            assert there[variable] != choice
            there[variable] = choice
            layout = assigned_layout(problem, there)
            prices = StepPrices(problem.program, problem.mesh, profile, problem.setting.queue)
            step_s = StepTimeline(prices, layout, orders=True).prediction.step_s
            assert other.fixed_s == pytest.approx(step_s, rel=1e-9)
            assert other.fixed_bytes == Assigned(problem, there).memory_bytes
            assert (other.replanned_s, other.note) == (None, NO_BUDGET)
        steps = [other.fixed_s for other in told.others]
        assert steps == sorted(steps)


@pytest.mark.parametrize(("name", "module"), PLANNED_AGAIN)
def test_re_planned_is_what_optimize_finds_with_that_pin(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`optimize` on a network in which the op has that one choice; or the fixed one, if it is shorter."""
    shorter = 0
    for told in why(opened(name), module, SOME):
        for other in told.others:

            def pinned(
                *args: Any, told: Why = told, shown: str = other.signature, **kwargs: Any
            ) -> Any:
                problem = build_problem(*args, **kwargs)
                variable, choice = variable_of(problem, told, shown)
                domains = everything(problem)
                domains[variable] = np.array([choice])
                return restricted(problem, domains)

            with monkeypatch.context() as patch:
                patch.setattr(requests, "build", pinned)
                plan = autoddl.optimize(
                    PROGRAMS[name], mesh=MESHES.get(name, "2x2"), profile=profile_for(name),
                    budget=SOME, compute_stream=False, recompute="none",
                )  # fmt: skip
            states = plan.signatures[told.name]
            assert signature(told.name, states, plan.program) == other.signature
            best_s = min(plan.estimate.step_s, other.fixed_s)
            assert other.replanned_s == pytest.approx(best_s, rel=1e-9)
            shorter += plan.estimate.step_s < other.fixed_s * (1 - 1e-9)
    assert shorter or (name, module) != ("large", "model.blocks.0.fc1")  # neighbours follow


def test_an_op_is_the_result_of_the_module_and_its_tensors_stand_for_it() -> None:
    found = opened("transformer")
    (told,) = why(found, "model.blocks.0.fc1", None)
    result = found.plan.program.op[told.name].outputs[0][1]
    assert why(found, told.name, None) == why(found, result, None) == (told,)
    (held,) = why(found, "model.blocks.0.fc1.weight", None)
    assert held.name == "model.blocks.0.fc1.weight"
    assert held.signature == str(found.plan.variables[held.name]) and held.words == ""
    (given,) = why(found, "input.0.0", None)
    assert given.signature == str(found.plan.layout.inputs["input.0.0"])


def test_modules_have_up_to_three_main_ops() -> None:
    """Attention multiplies twice; the activation, which multiplies nothing, has its largest op."""
    found = opened("transformer")
    products = why(found, "model.blocks.0.attention", None)
    assert [found.plan.program.op[told.name].type for told in products] == ["batch_matmul"] * 2
    (act,) = why(found, "model.blocks.0.act", None)
    assert act.signature.startswith("gelu: ")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.blocks.0.fc3", "nearest are 'model.blocks.0.fc"),
        ("modle.head", "nearest are 'model.head'"),
        (
            "model.blocks",
            "is a module without ops of its own of the program; inside it are 'model.b",
        ),
        ("", "nearest are '"),
        ("\x1b[31m\n", r"'\x1b[31m\n' is no module"),
        ("x" * 5000, "nearest are '"),
    ],
)
def test_what_is_not_there_names_the_nearest(name: str, expected: str) -> None:
    with pytest.raises(AutoDDLError) as error:
        asked_for(opened("transformer").problem, name)
    assert expected in str(error.value) and str(error.value).isprintable()
    assert len(str(error.value)) < 500


def test_a_better_step_than_the_plan_s_is_told() -> None:
    """Cutting both factors is not the best here, and searches around its ops find that."""
    plan = planned("large", search="SUMMA")
    asked = {"profile": profile_for("large"), "why": "model.blocks.0.fc1"}
    shorter = planned("large", budget=SOME).estimate.step_s < plan.estimate.step_s
    assert shorter
    for budget, told in ((SOME, True), (0, False)):
        text_of = " ".join(str(plan.explain(**asked, budget=budget)).split())
        assert ("plan again with a larger budget" in text_of) == told


def test_memory_decides() -> None:
    """With no more than the plan takes, what takes more does not fit, and there may be no plan at all."""
    found = opened("large", search="ZeRO 2")
    tight = replace(found, request=replace(found.request, limit_bytes=found.chosen.memory_bytes))
    decided = [
        other
        for module in ("model.blocks.0.fc1", "model.head")
        for told in why(tight, module, None)
        for other in told.others
    ]
    over = [each for each in decided if each.fixed_bytes > found.chosen.memory_bytes]
    assert over and all(each.decides == MEMORY and not each.fits for each in over)
    assert all(each.fits and each.decides != MEMORY for each in decided if each not in over)
    none = replace(
        found, request=replace(found.request, limit_bytes=found.problem.least_memory_bytes)
    )
    for told in why(none, "model.blocks.0.fc1", Budget(evaluations=300)):
        assert {each.note for each in told.others} == {NO_ROOM}
        assert {each.decides for each in told.others} == {MEMORY}


@pytest.mark.parametrize(("slower", "expected"), [(1e-6, "compute"), (100.0, "communication")])
def test_what_decides_is_what_takes_longer(slower: float, expected: str) -> None:
    """All of it on every device computes longer, and links that are fast cut its result soon."""
    plan, base = planned("large", search="data parallel"), profile_for("large")
    links = [
        structs.replace(
            link, alpha_s=link.alpha_s * slower, beta_s_per_byte=link.beta_s_per_byte * slower
        )
        for link in base.links
    ]
    found = reopened(plan, structs.replace(base, links=tuple(links)))
    (asked,) = asked_for(found.problem, "model.blocks.0.fc1")
    assert text(found, asked, 0) == "broadcast_matmul: (B, B) × (B, B) → (B, B)"
    assert decider(found.chosen, found.with_choice(asked[:2], 0)) == expected
    assert decider(found.chosen, found.chosen) == NOTHING


def step(step_s: float, **off_s: float) -> Any:
    """Return a step of which so many seconds of each source may be off."""
    cost = SimpleNamespace(off_s=off_s)
    return SimpleNamespace(step_s=step_s, timeline=SimpleNamespace(cost=cost))


def test_steps_are_tied_where_their_sources_can_not_tell_them_apart() -> None:
    """What both have of one source cancels out: of 5 ± 0.5 s alike only the rest is uncertain."""
    plan = step(10.0, matmul=0.5, gather=0.3)
    assert are_tied(plan, plan)
    assert not are_tied(plan, step(10.1, matmul=0.5, gather=0.3))  # whatever the 0.8 s
    assert are_tied(plan, step(10.1, matmul=0.5, gather=0.4))
    assert are_tied(plan, step(9.9, matmul=0.5, scatter=0.1, gather=0.3))
    assert not are_tied(plan, step(11.0, matmul=0.5, gather=0.4))
    assert not are_tied(plan, step(9.0, matmul=0.3, gather=0.3))
