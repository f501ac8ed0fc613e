"""`python -m autoddl report`: what it writes, and plans that it can't read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoddl import json_files
from autoddl.cli.app import main
from autoddl.report.page.page_html import page
from tests.autoddl.explain.plans import planned
from tests.support.clusters import cluster


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned("mlp").save("plan.json")
    cluster().save("network.json")


def test_it_writes_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", "plan.json", "--profile", "network.json", "-o", "page.html"]
    assert main(words) == 0
    assert Path("page.html").read_text() == page(planned("mlp"), cluster())
    assert main(words) == 2
    assert "exists; add --force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert main(["report", "plan.json"]) == 0
    assert "is not bundled; give its file" in Path("plan.html").read_text()


@pytest.mark.parametrize(
    "change", [{"version": 99}, {"version": -1}, {"format": "x"}, {"parts": []}]
)
def test_another_version_or_a_broken_plan(
    change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(Path("plan.json").read_text())
    json_files.write("plan.json", json.dumps({**data, **change}).encode(), indent=-1)
    capsys.readouterr()
    assert main(["report", "plan.json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err[:-1].isprintable()
    assert not Path("plan.html").exists()
