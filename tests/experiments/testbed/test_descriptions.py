"""Testbeds as they are described, and command lines that can't be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from experiments.lib import cli
from experiments.testbed import TestbedError, TestbedSpec
from experiments.testbed.__main__ import command as whole


def main(argv: list[str]) -> int:
    return cli.run(whole, "testbed", argv)


@pytest.mark.parametrize(
    ("rate", "bit_s"),
    [
        ("500mbit", 500_000_000),
        ("2gbit", 2_000_000_000),
        ("2.5 Gbit", 2_500_000_000),
        ("200000kbit", 200_000_000),
        ("1000000bit", 1_000_000),
        (3e8, 300_000_000),
    ],
)
def test_rates(rate: str | float, bit_s: int) -> None:
    assert TestbedSpec.parse(nodes=2, ranks=2, rate=rate).rate_bit_s == bit_s


def test_a_burst_is_worth_a_quarter_of_a_millisecond_but_at_least_a_frame() -> None:
    bursts = {
        rate: TestbedSpec.parse(nodes=1, ranks=1, rate=rate).burst_bytes
        for rate in ("1mbit", "200mbit", "1gbit", "2gbit")
    }
    assert bursts == {"1mbit": 10_000, "200mbit": 10_000, "1gbit": 31_250, "2gbit": 62_500}
    assert TestbedSpec.parse(nodes=1, ranks=1, rate="1gbit", burst="32kb").burst_bytes == 32768


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rate": "fast"}, "rate: got 'fast', allowed is a finite number with one of bit, kbit"),
        ({"rate": "500"}, "rate: got '500'"),
        ({"rate": "5mbps"}, "rate: got '5mbps'"),
        ({"rate": "-5mbit"}, "rate: got '-5mbit'"),
        ({"rate": "1kbit"}, "allowed are 1mbit to 40gbit"),
        ({"rate": float("nan")}, "rate: got nan"),
        ({"nodes": 0}, "nodes: got 0, allowed are 1 to 200"),
        ({"nodes": 201}, "nodes: got 201"),
        ({"ranks": 0}, "ranks: got 0"),
        ({"burst": "1kb"}, "burst: got 1024 bytes"),
        ({"burst": "much"}, "burst: got 'much'"),
    ],
)
def test_descriptions_that_cannot_be(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(TestbedError) as error:
        TestbedSpec.parse(**{"nodes": 2, "ranks": 2, "rate": "500mbit", **changed})
    assert text in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--nodes 2 --ranks 2 --rate fast -- x.py", "rate: got 'fast'"),
        ("--nodes 0 --ranks 2 --rate 1gbit -- x.py", "nodes: got 0"),
        ("--nodes two --ranks 2 --rate 1gbit -- x.py", "'--nodes': 'two' is not a valid integer"),
        ("--ranks 2 --rate 1gbit -- x.py", "--nodes is missing; usage: python -m"),
        ("--nodes 2 --ranks 2 --rate 1gbit", "nothing to run after `--`; usage: python -m"),
        ("--nodes 2 --ranks 2 --rate 1gbit --", "nothing to run after `--`"),
    ],
)
def test_bad_command_lines(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("testbed: ") and text in err


def test_without_iproute2_or_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for tool in ("ip", "tc"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = ["--nodes", "1", "--ranks", "1", "--rate", "1gbit", "--", "x.py"]
    assert main(line) == 2
    assert "needs root" in capsys.readouterr().err
    (tmp_path / "tc").unlink()
    assert main(line) == 2
    err = capsys.readouterr().err
    assert "needs tc of iproute2" in err and "make testbed" in err and err.count("\n") == 1
