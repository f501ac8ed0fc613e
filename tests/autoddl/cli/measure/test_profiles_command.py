"""`python -m autoddl profiles`: each bundled profile in a row, or all that one says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from autoddl.cli import app
from autoddl.perfmodel import profile as profiles


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert app.main(["profiles", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def cells(table: str, column: int) -> str:
    """Return the text of a column, its lines joined."""
    rows = [line.split("│") for line in table.splitlines() if line.startswith("│")]
    return " ".join(row[column].strip() for row in rows)


def test_each_bundled_profile_says_what_it_was_made_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys)
    assert [name for name in cells(out, 1).split(" ") if name] == list(profiles.bundled())
    made_from = cells(out, 4).replace(" ", "")
    for name in profiles.bundled():
        profile = profiles.load(name)
        assert profile.source.replace(" ", "") in made_from, name
        assert ", ".join(profile.levels) in cells(out, 3)
        assert profile.device.name in cells(out, 2)


def test_one_profile_has_all_its_links_and_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    out, profile = printed(capsys, "v100-8x"), profiles.load("v100-8x")
    assert out.startswith("profile v100-8x, measured, of cuda devices\nmade from: links fitted to")
    assert "levels: node, gpu; kinds of devices: one, all are alike\n" in out
    (device,) = re.findall(r"│ V100 32 GB .*", out)
    peak = profile.device.peak_flops["float32"] / 1e12
    assert f" float32 {peak:.3g}" in device and " 32.0 GiB " in device
    links = re.findall(r"│ (?:all-|reduce-|send-).*", out)
    assert len(links) == len(profile.links)
    first = profile.links[0]
    assert f" {first.alpha_s * 1e6:.1f} │ " in links[0]
    assert f" {1e-9 / first.beta_s_per_byte:.2f} │" in links[0]


def test_a_file_of_several_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets in names are no markup."""
    of = profiles.load("h100")
    fast = structs.replace(of.device, name="[red]fast[/red]")
    mixed = structs.replace(of, devices={"h100": fast, "t4": of.device}, links=of.links[:3])
    mixed.save(tmp_path / "mixed.json")
    out = printed(capsys, str(tmp_path / "mixed.json"))
    assert "kinds of devices: h100, t4\n" in out
    assert "│ [red]fast[/red] │ h100 │" in out and len(re.findall("│ all-reduce .*", out)) == 3


@pytest.mark.parametrize(("name", "meant"), [("h10", "h100"), ("v100-8", "v100-8x")])
def test_a_misspelt_name(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["profiles", name]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.endswith(f"; did you mean {meant}?\n")


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "\x07", "\u202egpj", "\x9b2J", "\u2028"])
@pytest.mark.parametrize("field", ["name", "source", "collective"])
def test_what_a_file_says_cannot_reach_the_terminal_as_controls(
    field: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(profiles.load("cpu-loopback").encoded())
    for holder in (data, data["links"][0]):
        if field in holder:
            holder[field] = name
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(data))
    assert app.main(["profiles", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err[:-1].isprintable()
    assert "was changed" not in err  # it is refused for itself
