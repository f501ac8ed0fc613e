"""README and docs: their examples run, their commands, options, links and files exist."""

from __future__ import annotations

import ast
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from autoddl.cli.app import main
from tests.support.doc_pages import (
    GENERATED,
    PAGES,
    README,
    ROOT,
    WRITTEN,
    blocks,
    commands,
    fenced,
    lines,
)


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= 6000
    assert max(map(len, README.read_text().splitlines())) <= 120


@pytest.mark.parametrize("name", WRITTEN)
def test_examples_are_python(name: str) -> None:
    for example in fenced(WRITTEN[name], "python"):
        ast.parse(example)


@pytest.mark.parametrize("name", WRITTEN)
def test_links_lead_somewhere(name: str) -> None:
    page = WRITTEN[name]
    lacking = [
        link
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
        if not link.startswith("https://") and not (page.parent / link).exists()
    ]
    assert lacking == []


@pytest.mark.parametrize("name", WRITTEN)
def test_files_and_folders_exist(name: str) -> None:
    tops = "|".join(p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith("."))
    named = re.findall(rf"`((?:{tops})/[\w./-]*)`", WRITTEN[name].read_text())
    assert [
        path for path in named if not path.startswith("out/") and not (ROOT / path).exists()
    ] == []


def glossary() -> list[tuple[str, list[str], Path]]:
    """Return the rows of the glossary: the first term, all of them, and the module or folder."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w./]+)` \|$", text, flags=re.MULTILINE)
    return [(terms.split(",")[0], terms.split(", "), ROOT / path) for terms, path in rows]


def words_of(path: Path) -> str:
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return " ".join(" ".join(file.read_text().lower().split()) for file in files)


def test_terms_of_the_glossary_are_found_where_it_says() -> None:
    found = glossary()
    assert len(found) > 30
    wrong = [
        (first, str(path.relative_to(ROOT)))
        for first, terms, path in found
        if not any(term.split(" (")[0].lower() in words_of(path) for term in terms)
    ]
    assert wrong == []
    told = {first for first, _, _ in found}
    assert {"min-marginal", "reduced cost", "quotient", "liveness", "lowering"} <= told


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_begins_with_whom_it_is_for_and_what_to_try(name: str) -> None:
    page = WRITTEN[name]
    first = page.read_text().partition("\n\n")[2].partition("\n## ")[0]
    if name != "README.md":
        assert first.startswith("For who")
    block = next(text for language, text in blocks(page) if language in ("", "python"))
    assert block in page.read_text()[:2000]
    assert any(line in commands(page) for line in lines(block)) or "autoddl" in block


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [p.name for p in PAGES.values() if p.parent != ROOT and f"({p.name})" not in index
            and p.name != "README.md"] == []  # fmt: skip


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_name_their_command(name: str) -> None:
    first = (ROOT / "docs" / name).read_text().splitlines()[0]
    match = re.fullmatch(r"<!-- Written by `python -m ([\w.]+)[^`]*`; do not edit\. -->", first)
    assert match is not None and find_spec(match[1]) is not None


def options() -> Mapping[tuple[str, ...], set[str]]:
    """Return the options by command that README and docs name."""
    found: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for page in WRITTEN.values():
        for line in commands(page):
            if line.startswith("python -m "):
                words = shlex.split(line.removeprefix("python -m ").replace("…", ""))
                length = 2 if words[0] == "autoddl" else 1
                end = words.index("--") if "--" in words else len(words)
                named = {word for word in words[length:end] if re.match("-+[a-z]", word)}
                found[tuple(words[:length])] |= named
    return found


def help_of(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what `python -m COMMAND --help` prints, without a process for each."""
    monkeypatch.setattr(sys, "argv", ["-m", *command[1:], "--help"])
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the module is imported already
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    assert ended.value.code in (0, None), command
    return printed.getvalue()


def test_commands_and_their_options_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    named = options()
    assert len(named) > 12  # or nothing was found to look at
    for command, words in named.items():
        if command[0].startswith("oneflow"):
            continue
        assert find_spec(command[0]) is not None, command
        known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", help_of(command, monkeypatch)))
        assert words <= known, (command, words - known)


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {word for page in WRITTEN.values() for line in commands(page)
               for word in line.split()[1:2] if line.startswith("make ")}  # fmt: skip
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_one_spelling_per_command() -> None:
    for page in WRITTEN.values():
        for old in ("python -m autoddl.fit_", "`fit_network`", "nproc_per_node"):
            assert old not in page.read_text(), page


# --- examples ----------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with the examples in it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed_by(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command of the README in this process and return what it prints."""
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "autoddl"]
    assert main(words[3:]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.oneflow
def test_the_first_plan_is_what_its_commands_print(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All at full size: the GPT takes no memory, and the search is counted in evaluations."""
    block, (shown,) = fenced(README, "")[0], fenced(README, "text")
    assert block in (checkout / "examples" / "gpt.py").read_text()
    _, planned, explained = (printed_by(line, capsys) for line in lines(block))

    layers, _, rows = shown.partition("\n\n")
    told, found = predictions(rows), predictions(planned)
    for name, numbers in told.items():  # a better search may change them a little
        assert found[name] == pytest.approx(numbers, rel=0.03), name
    step_s = {name: numbers[0] for name, numbers in found.items()}
    text = " ".join(README.read_text().split())
    for ratio, name in (("1.12", "data parallel"), ("1.47", "ZeRO 2"), ("1.77", "Megatron")):
        assert step_s[name] / step_s["plan"] == pytest.approx(float(ratio), rel=0.02)
        assert f"{ratio} times" in text
    words = text_of(explained)
    for line in layers.splitlines()[1:]:
        assert text_of(re.split(r"\s{2,}", line)[1]) in words, line
    assert re.search(r"tied with this plan [^:]*: data parallel", " ".join(explained.split()))


def text_of(printed: str) -> str:
    """Return the third column of a table, or text, as one line."""
    rows = [line.split("│") for line in printed.splitlines()]
    return " ".join(" ".join(row[3] if len(row) > 3 else row[0] for row in rows).split())


@pytest.mark.oneflow
@pytest.mark.ranks
@pytest.mark.smoke
def test_the_first_example_trains_and_prints_its_plan(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Literally the commands of the README, in their order, as in a fresh checkout."""
    (example,), (block,) = (
        fenced(README, "python"), [each for each in fenced(README, "") if each.startswith("cp ")],
    )  # fmt: skip
    copy, *before, run = lines(block)
    assert copy == "cp examples/own_model.py train.py"
    shutil.copy(*copy.split()[1:])
    assert Path("train.py").read_text().split('"""\n')[1].strip() == example.strip()
    captured, planned, explained = (printed_by(line, capsys) for line in before)
    assert "wrote own.json" in captured and "columns of the weight over GPUs" in text_of(explained)

    assert run == "python -m autoddl run --nproc-per-node 4 train.py"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *run.split()[1:]], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    assert predictions(done.stdout) == predictions(planned) != {}
    assert "critical path" in done.stdout
    losses = [float(x) for x in re.findall(r"losses: \[(.*)\]", done.stdout)[0].split(", ")]
    assert losses == sorted(losses, reverse=True) and len(losses) == 3


def predictions(printed: str) -> dict[str, list[float]]:
    """Return the numbers of each row of predictions: "plan" → [46.75, 20.0, …]."""
    rows = [re.sub("[│┃]", " ", line) for line in printed.splitlines() if "±" in line]
    found = {}
    for row in rows:
        name, rest = re.split(r"\s{2,}", row.strip(), maxsplit=1)
        found[name] = [float(number) for number in re.findall(r"\d+\.?\d*", rest)]
    return found


def test_the_example_of_planning_without_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.programs import transformer

    monkeypatch.chdir(tmp_path)
    transformer(layers=1, batch=32).save("gpt.json")
    (example,) = fenced(ROOT / "docs" / "search.md", "python")
    exec(example, {})
    assert "plan on mesh 4x8" in capsys.readouterr().out
    assert (tmp_path / "gpt_plan.json").exists()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from autoddl.sbp.rules import registry

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_the_rule_example_registers_a_right_rule(registry: None) -> None:
    from autoddl.sbp.numpy_oracle.simulated_ops import check_signature
    from autoddl.sbp.rules.registry import OpView, find, signatures
    from autoddl.sbp.state import NdSbp

    (example,) = fenced(ROOT / "docs" / "rules.md", "python")
    assert find("mish") is None
    exec(example, {})
    view = OpView("mish", ("in_0",), ("out_0",), {"in_0": (4, 6), "out_0": (4, 6)}, {})
    found = signatures(view)
    assert {str(s["in_0"]) for s in found} == {"B", "S0", "S1"}
    for signature in found:
        states = {name: NdSbp((state,)) for name, state in signature.items()}
        assert check_signature(view, states, (2,), np.random.default_rng(0)) is None
