"""Figures are files of both kinds, drawn without a screen."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.lib import figures


def test_predicted_against_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    frame = pd.DataFrame({"model": ["a", "a", "b"], "m": [1.0, 2.0, 4.0], "p": [1.1, 1.9, 5.0]})
    figure, ((left, right),) = figures.panels(1, 2)
    figures.against(left, frame, "m", "p", ["model"], 0.15)
    figures.against(right, frame[:0], "m", "p", ["model"], 0.15)  # nothing to draw
    groups = [points.get_offsets().tolist() for points in left.collections[:2]]
    assert groups == [[[1.0, 1.1], [2.0, 1.9]], [[4.0, 5.0]]]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["a", "b"]
    assert left.get_xlim() == left.get_ylim() == (0.8, 6.25)
    assert not right.collections
    figures.save(figure, tmp_path / "f")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "f.svg").read_text()


def test_colours_are_told_apart() -> None:
    assert len(set(figures.COLOURS)) == len(figures.COLOURS) >= 6


def test_curves_and_points_are_told_apart_without_colours() -> None:
    assert len({str(figures.curve(number)) for number in range(36)}) == 36
    first = [str(figures.curve(number)["linestyle"]) for number in range(len(figures.DASHES))]
    assert len(set(first)) == len(first) == len(figures.COLOURS) == len(figures.MARKS)
