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
    assert TestbedSpec.parse(nodes=2, ranks=2, rate=rate).rates_bit_s == (bit_s, bit_s)


def test_a_burst_is_worth_a_quarter_of_a_millisecond_but_at_least_a_frame() -> None:
    bursts = {
        rate: TestbedSpec.parse(nodes=1, ranks=1, rate=rate).bursts_bytes[0]
        for rate in ("1mbit", "200mbit", "1gbit", "2gbit")
    }
    assert bursts == {"1mbit": 10_000, "200mbit": 10_000, "1gbit": 31_250, "2gbit": 62_500}
    assert TestbedSpec.parse(nodes=1, ranks=1, rate="1gbit", burst="32kb").bursts_bytes == (32768,)


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
        ({"rate": "1gbit,1gbit,1gbit"}, "rate: got 3 for 2 nodes"),
        ({"rate": "1gbit,"}, "rate: got ''"),
        ({"cpu": "0.5,0.5,0.5"}, "cpu: got 3 for 2 nodes"),
        ({"cpu": "half"}, "cpu: got 'half', allowed are shares of a core"),
        ({"cpu": "0.5,1.5"}, "cpu: got 1.5, allowed are shares of a core from 0.05 to 1"),
        ({"cpu": "0.5,0.01"}, "cpu: got 0.01"),
        ({"cpu": "nan"}, "cpu: got nan"),
        (
            {"ranks": 64, "cpu": "0.9"},
            "cpu: got 0.9, 0.9 for each of 64 ranks, 115.2 cores together",
        ),
    ],
)
def test_descriptions_that_cannot_be(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(TestbedError) as error:
        TestbedSpec.parse(**{"nodes": 2, "ranks": 2, "rate": "500mbit", **changed})
    assert text in str(error.value) and "\n" not in str(error.value)


def test_rates_and_shares_of_each_node() -> None:
    spec = TestbedSpec.parse(
        nodes=4, ranks=1, rate="200mbit,200mbit,50mbit,1gbit", cpu="0.1,0.1,0.05,0.05"
    )
    assert spec.rates_bit_s == (200_000_000, 200_000_000, 50_000_000, 1_000_000_000)
    assert spec.bursts_bytes == (10_000, 10_000, 10_000, 31_250)
    assert spec.cpu == (0.1, 0.1, 0.05, 0.05)
    assert "200, 50, 1000 Mbit/s" in str(spec) and "CPU shares 0.1, 0.1" in str(spec)


@pytest.mark.parametrize(
    ("cpu", "ranks", "cores", "packed"),
    [
        ("0.6,0.6,0.3,0.3", 1, 2, (0, 1, 0, 1)),
        ("0.3,0.6,0.6,0.3", 1, 2, (0, 0, 1, 1)),
        ("0.6,0.3", 2, 2, (0, 1, 0, 1)),
        ("1,0.5,0.5", 1, 2, (0, 1, 1)),
    ],
)
def test_no_core_is_shared_out_twice(
    cpu: str, ranks: int, cores: int, packed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    spec = TestbedSpec.parse(nodes=cpu.count(",") + 1, ranks=ranks, rate="1gbit", cpu=cpu)
    assert spec.packed(cores) == packed
    of_core = [0.0] * cores
    for rank, core in enumerate(packed):
        of_core[core] += spec.cpu[rank // ranks]
    assert max(of_core) <= 1 + 1e-9


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
