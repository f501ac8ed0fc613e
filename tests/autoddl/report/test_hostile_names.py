"""Names of programs, plans and profiles put no markup, scripts or control characters anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest

from autoddl.api import Plan, optimize
from autoddl.cli.app import main
from autoddl.errors import AutoDDLError
from autoddl.explain.asked import asked_for
from autoddl.explain.certainty import Certainty, SourceError
from autoddl.explain.layer_rows import LayerRow
from autoddl.explain.reopened import reopened
from autoddl.explain.sensitivity import Flip, MemoryFlip, Sensitivity
from autoddl.explain.time_and_memory import ParetoPoint
from autoddl.explain.waits import Waited, Waits
from autoddl.plan.search_report import Outcome, PlanTrial
from autoddl.report.page import page_html
from autoddl.report.page.page_values import PageValues, page_values
from autoddl.sbp.program import Program
from tests.autoddl.explain.plans import planned
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster
from tests.support.hostile_names import COUNT, HOSTILE
from tests.support.pages import Page
from tests.support.programs import mlp, transformer

BENIGN = "a name"


def control(text: str, allowed: str = "\n") -> list[str]:
    return [c for c in text if not c.isprintable() and c not in allowed]


def groups(size: int) -> Iterator[list[str]]:
    """Yield all names, so many at a time."""
    for begin in range(0, COUNT, size):
        yield HOSTILE[begin : begin + size]


@cache
def values() -> PageValues:
    return replace(
        page_values(planned("mlp"), cluster()),
        memory=None,
        timeline=None,
        missing=dict.fromkeys(("memory", "timeline"), BENIGN),
    )


def with_name(name: str) -> PageValues:
    """Return values in which every text that comes from elsewhere is a name."""
    told = values()
    plan, flip = told.plan, Flip(1.5, name, 1.0, 2.0)
    part = replace(plan.parts[0], kinds=(name,))
    search = replace(
        plan.search, solver=name, outcomes=(Outcome(1, 1, name, step_s=1.0, memory_bytes=5),),
        trials=(PlanTrial(name, name, 1.0, note=name),),
    )  # fmt: skip
    plan = replace(
        plan, parts=(part,), profile=name, search=search,
        baselines=tuple(replace(row, name=name) for row in plan.baselines),
    )  # fmt: skip
    return replace(
        told, plan=plan, layers=(LayerRow((name,), name, name, 1.0, 1.0, 1),),
        certain=Certainty(0.1, 1.0, 1.0, ((name, 1.0),), ()),
        points=(ParetoPoint(name, 1.0, 1, True), ParetoPoint(name, 2.0, 2)),
        waits=Waits(2.0, (Waited((name,), 1.0, 1.0),), ((name, 2.0),)),
        sensitivities=(Sensitivity(name, flip, flip),),
        memory_flips=(MemoryFlip(5, False, name, 1.0), MemoryFlip(9, True, name, 1.0)),
        sources=(SourceError(name, 1.0, 0.5),),
    )  # fmt: skip


def rendered(told: PageValues) -> str:
    return page_html._html("page.html", page_html._context(told))


def test_there_are_enough() -> None:
    assert len(set(HOSTILE)) == COUNT == 300


def test_every_name_is_text_and_nothing_else_wherever_it_stands() -> None:
    """The elements and attributes of the page are those of one with a name without malice."""
    wanted = Page(rendered(with_name(BENIGN)))
    places = sum(text.count(BENIGN) for text in wanted.texts)
    assert places > 30
    for name in HOSTILE:
        text = rendered(with_name(name))
        found = Page(text)
        assert found.elements == wanted.elements, name
        assert found.declared == wanted.declared and found.open == []
        assert not control(text), name
        assert not control("".join(found.texts)), name


def test_what_templates_do_not_shorten_is_printable_too() -> None:
    made = page_html._environment().from_string("<p>{{ name }}</p>")
    for name in HOSTILE:
        text = made.render(name=name)
        assert not control(text) and [tag for tag, _ in Page(text).elements] == ["p"], name


def test_reasons_and_problems_are_text() -> None:
    sections = ("time", "memory", "timeline", "sensitivity", "calibration")
    for names in groups(len(sections)):
        told = replace(
            with_name(BENIGN), waits=None, timeline=None, sensitivities=(), sources=(), memory=None,
            missing=dict(zip(sections, names, strict=True)),
        )  # fmt: skip
        text = rendered(told) + page_html._html("problem.html", {"problem": names[0]})
        found = Page(text)
        assert not control(text), names
        assert {tag for tag, _ in found.elements} <= TAGS
        assert not any(key.startswith("on") for _, attrs in found.elements for key, _ in attrs)


def renamed(program: Program, names: Iterator[str]) -> Program:
    """Return a program whose ops, modules and tensors have hostile names, all unlike each other."""
    new: dict[str, str] = {}

    def of(name: str | None) -> str | None:
        if name is None or name.startswith("System-"):
            return name
        return new.setdefault(name, f"{next(names)}{len(new)}")

    def pairs(each: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((operand, of(tensor) or "") for operand, tensor in each)

    return replace(
        program,
        ops=tuple(
            replace(
                op, name=of(op.name), inputs=pairs(op.inputs), outputs=pairs(op.outputs),
                module=of(f"module {op.module}"),
            )
            for op in program.ops
        ),
        tensors=tuple(replace(t, name=of(t.name)) for t in program.tensors),
        inputs=tuple(of(name) or "" for name in program.inputs),
        outputs=tuple(of(name) or "" for name in program.outputs),
        parameters=tuple(
            replace(
                p, tensor=of(p.tensor), gradient=of(p.gradient), update=of(p.update),
                states=tuple(of(s) or "" for s in p.states),
            )
            for p in program.parameters
        ),
        loss=of(program.loss),
    )  # fmt: skip


@cache
def hostile() -> Plan:
    program = renamed(transformer(layers=2), cycle(HOSTILE))
    return optimize(program, mesh="2x2", profile=cluster(), budget=LITTLE)


@cache
def hostile_stages() -> Plan:
    program = renamed(mlp(8, (16, 32, 32, 8)), cycle(HOSTILE[::-1]))
    return optimize(program, mesh="2", pipeline=2, micro_batches=2, budget=LITTLE)


TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "nav", "ul", "li",
    "a", "main", "section", "div", "b", "span", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th",
    "td", "figure", "footer", "code", "svg", "defs", "pattern", "rect", "path", "line", "text", "circle",
    "desc",
}  # fmt: skip


def test_a_plan_of_a_hostile_program_has_an_ordinary_page() -> None:
    for plan, profile in ((hostile(), cluster()), (hostile_stages(), None), (hostile(), None)):
        text = page_html.page(plan, profile)
        found = Page(text)
        assert {tag for tag, _ in found.elements} <= TAGS
        assert found.open == [] and not control(text)
        keys = {key for _, attrs in found.elements for key, _ in attrs}
        assert not {key for key in keys if key.startswith("on")} and not {"src", "style"} & keys
        shown = plan._repr_html_()
        assert shown is not None and not control(shown)
        assert {tag for tag, _ in Page(shown).elements} <= TAGS


def test_the_terminal_gets_no_control_characters() -> None:
    for plan in (hostile(), hostile_stages()):
        assert not control(str(plan))
    plan = hostile()
    assert not control(str(plan.explain(profile=cluster())))
    modules = list(dict.fromkeys(op.module for op in plan.program.ops))
    for module in modules[:5]:
        assert not control(str(plan.explain(module, profile=cluster(), budget=0)))
    for tensor in plan.program.inputs:
        assert not control(str(plan.explain(tensor, "S0", profile=cluster(), budget=0)))


def test_so_do_tables_with_every_name() -> None:
    base, found = planned("mlp"), reopened(planned("mlp"), cluster())
    for names in groups(len(base.baselines)):
        plan = with_name(names[0]).plan
        rows = zip(plan.baselines, names, strict=True)
        plan = replace(plan, baselines=tuple(replace(row, name=name) for row, name in rows))
        assert not control(str(Plan.of(plan))), names
    for name in HOSTILE:
        with pytest.raises(AutoDDLError) as error:
            asked_for(found.problem, f"{name}?")
        assert not control(str(error.value), ""), name


def test_messages_of_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    planned("mlp").save("plan.json")
    for name in HOSTILE:
        for words in (
            ["report", "plan.json", "--profile", f"no {name}", "-o", "x.html"],
            ["report", "plan.json", "-o", f"no/{name}"],
            ["report", "plan.json", f"--{name}"],
        ):
            code = main(words)
            out, err = capsys.readouterr()
            assert code in (0, 2), (name, words)
            assert not control(out) and not control(err), (name, words)
            assert not re.search("\x1b", out + err)
            assert err.count("\n") == (1 if code else 0), (name, words)
