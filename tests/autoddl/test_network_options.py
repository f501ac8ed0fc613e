"""The options: sizes as nccl-tests has them, defaults, and one line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.engine.cases import ALL_COLLECTIVES
from autoddl.engine.settings import QUICK_SIZES, SIZES
from autoddl.errors import AutoDDLError
from autoddl.network_options import parse, size_of, sizes_of

ONE = ["--nproc-per-node", "4"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("8K", 8192), ("8k", 8192), ("4M", 4 << 20), ("1G", 1 << 30), ("2GiB", 2 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "8T", "-8", "1.5M", "K", "8 8"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(AutoDDLError, match="allowed are whole bytes such as 512, 8K, 4M, 1G"):
        size_of(text)


def test_steps() -> None:
    assert sizes_of(8, 128, 2.0) == (8, 16, 32, 64, 128)
    assert sizes_of(16, 100, 4.0) == (16, 64)
    assert sizes_of(1000, 2000, 1.5) == (1000, 1500)
    assert sizes_of(10, 40, 4.0) == (8, 40)  # whole float32 numbers


def test_defaults() -> None:
    options = parse(ONE)
    settings = options.settings
    assert settings is not None
    assert settings.sizes == SIZES
    assert settings.collectives == ALL_COLLECTIVES
    assert (settings.mode, settings.modes, settings.iterations) == ("graph", ("graph",), 1000)
    assert [options.output, options.csv, options.plot] == [
        Path("network.json"), Path("network.csv"), Path("network.png")
    ]  # fmt: skip
    assert not options.plot_wanted
    quick = parse([*ONE, "--quick", "--mode=both"]).settings
    assert quick is not None
    assert (quick.sizes, quick.modes) == (QUICK_SIZES, ("graph", "eager"))


def test_all_options() -> None:
    line = (
        "--nproc_per_node 2 --nnodes=2 --node-rank 1 --master-addr a --master_port 99 -b 8K -e 32K "
        "-f 2 -n 7 -w 3 --budget 9 --collectives all-reduce,send_receive --group-sizes 2,4 "
        "--timeout 5 -o a/b.json --csv c --plot d --json --fresh --device e"
    )
    options = parse(line.split())
    settings = options.settings
    assert settings is not None
    assert (settings.nproc_per_node, settings.nnodes) == (2, 2)
    assert settings.sizes == (8192, 16384, 32768)
    assert (settings.iterations, settings.warm_up, settings.budget_s) == (7, 3, 9)
    assert settings.collectives == ("all_reduce", "send_receive")
    assert settings.group_sizes == (2, 4)
    assert not settings.device
    assert (options.node.rank, options.node.master_addr, options.node.master_port) == (1, "a", 99)
    assert [options.output, options.csv, options.plot, options.device] == [
        Path("a/b.json"), Path("c"), Path("d"), Path("e")
    ]  # fmt: skip
    assert options.plot_wanted and options.json and options.fresh
    assert options.timeout_s == 5


def test_json_alone_writes_nothing() -> None:
    options = parse([*ONE, "--json"])
    assert [options.output, options.csv, options.plot] == [None] * 3


def test_nccl_tests() -> None:
    options = parse(["--from-nccl-tests", "a", "b", "--level", "node"])
    assert options.settings is None
    assert options.nccl_tests == (Path("a"), Path("b"))
    assert options.level == "node"


MISTAKES = {
    "": "the following arguments are required: --nproc-per-node",
    "--nproc-per-node two": "invalid int value: 'two'",
    "--nproc-per-node 0": "nproc_per_node: got 0; allowed are 1 and more",
    "--nproc-per-node 2 --mode lazy": "invalid choice: 'lazy'",
    "--nproc-per-node 2 --slow": "unrecognized arguments: --slow",
    "--nproc-per-node 2 --nnodes 0": "nnodes: got 0; allowed are 1 and more",
    "--nproc-per-node 2 --node-rank 1": "node_rank: got 1; allowed with --nnodes 1 are 0 to 0",
    "--nproc-per-node 2 --nnodes 2": "master_port: missing with --nnodes 2",
    "--nproc-per-node 2 -b 1M -e 8K": "sizes: got 1048576 to 8192 bytes (-b, -e)",
    "--nproc-per-node 2 -b 2": "sizes: got 2 to 16777216 bytes",
    "--nproc-per-node 2 -b 8K -e 8K": "sizes: only 8192 bytes",
    "--nproc-per-node 2 -f 1": "a step factor (-f) of 1; allowed are more than 1",
    "--nproc-per-node 2 -b 8X": "size: got '8X'",
    "--nproc-per-node 2 -n 0": "repetitions: got 0 after 2 to warm up",
    "--nproc-per-node 2 -w -1": "repetitions: got 1000 after -1 to warm up",
    "--nproc-per-node 2 --budget 0": "budget: got 0.0; allowed are more than 0 seconds",
    "--nproc-per-node 2 --collectives reduce": "collectives: got 'reduce'; allowed are all_reduce",
    "--nproc-per-node 4 --group-sizes 3": "group sizes: got 3; allowed are 2, 4",
    "--nproc-per-node 4 --group-sizes x": "group sizes: got 'x'; allowed are numbers",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes(line: str) -> None:
    with pytest.raises(AutoDDLError) as caught:
        parse(line.split())
    assert MISTAKES[line] in str(caught.value)
    assert "\n" not in str(caught.value)
