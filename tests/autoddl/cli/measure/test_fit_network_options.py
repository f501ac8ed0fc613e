"""The options: sizes as nccl-tests has them, defaults, and one line for every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from autoddl.calibrate.network import link_plot
from autoddl.calibrate.network.link_cases import ALL_COLLECTIVES, QUICK_SIZES, SIZES, LinkSettings
from autoddl.calibrate.network.message_sizes import sizes_of
from autoddl.cli.app import main
from autoddl.cli.measure import fit_network_command
from autoddl.cli.options import fields_of
from autoddl.launch.job import LaunchJob

Parse = Callable[[list[str]], "Asked"]
ONE = ["--nproc-per-node", "4"]


class Asked:
    """What a command line asks for."""

    settings: LinkSettings | None = None
    options: SimpleNamespace

    def measure(self, options: SimpleNamespace) -> None:
        self.settings, self.options = fit_network_command.settings_of(options), options

    def read(self, options: SimpleNamespace) -> None:
        self.options = options


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Asked]:
    def run(arguments: list[str]) -> Asked:
        asked = Asked()
        monkeypatch.setattr(fit_network_command, "_measured", asked.measure)
        monkeypatch.setattr(fit_network_command, "_imported", asked.read)
        monkeypatch.setattr(link_plot, "find_spec", lambda name: name)  # as if it were installed
        assert main(["fit-network", *arguments]) == 0
        return asked

    return run


def test_steps() -> None:
    assert sizes_of(8, 128, 2.0) == (8, 16, 32, 64, 128)
    assert sizes_of(16, 100, 4.0) == (16, 64)
    assert sizes_of(1000, 2000, 1.5) == (1000, 1500)
    assert sizes_of(10, 40, 4.0) == (8, 40)  # whole float32 numbers


def test_defaults(parse: Parse) -> None:
    asked = parse(ONE)
    options, settings = asked.options, asked.settings
    assert settings is not None
    assert settings.sizes == SIZES
    assert settings.collectives == ALL_COLLECTIVES
    assert (settings.mode, settings.modes, settings.iterations) == ("graph", ("graph",), 1000)
    assert [options.output, options.csv, options.plot] == [
        Path("network.json"), Path("network.csv"), Path("network.png")
    ]  # fmt: skip
    quick = parse([*ONE, "--quick", "--mode=both"]).settings
    assert quick is not None
    assert (quick.sizes, quick.modes) == (QUICK_SIZES, ("graph", "eager"))


def test_all_options(parse: Parse) -> None:
    line = (
        "--nproc_per_node 2 --nnodes=2 --node-rank 1 --master-addr a --master_port 99 -b 8K -e 32K "
        "-f 2 -n 7 -w 3 --budget 9 --collectives all-reduce,send_receive --group-sizes 2,4 "
        "--timeout 5 -o a/b.json --csv c --plot d --json --fresh --device e"
    )
    asked = parse(line.split())
    options, settings = asked.options, asked.settings
    assert settings is not None
    assert (settings.nproc_per_node, settings.nnodes) == (2, 2)
    assert settings.sizes == (8192, 16384, 32768)
    assert (settings.iterations, settings.warm_up, settings.budget_s) == (7, 3, 9)
    assert settings.collectives == ("all_reduce", "send_receive")
    assert settings.group_sizes == (2, 4)
    assert not settings.device
    assert (options.node_rank, options.master_addr, options.master_port) == (1, "a", 99)
    assert [options.output, options.csv, options.plot, options.device] == [
        Path("a/b.json"), Path("c"), Path("d"), "e"
    ]  # fmt: skip
    assert options.as_json and options.fresh
    assert options.timeout_s == 5


def test_what_is_zero_or_no_is_asked_for(parse: Parse) -> None:
    asked = parse([*ONE, "-w", "0", "--share-cores", "no"])
    assert asked.settings is not None and asked.settings.warm_up == 0
    assert fields_of(LaunchJob, asked.options)["share_cores"] is False


def test_json_alone_writes_nothing(parse: Parse) -> None:
    options = parse([*ONE, "--json"]).options
    assert [options.output, options.csv, options.plot] == [None] * 3


def test_nccl_tests(parse: Parse) -> None:
    asked = parse(["--from-nccl-tests", "a", "b", "--level", "node"])
    assert asked.settings is None
    assert asked.options.from_nccl_tests == (Path("a"), Path("b"))
    assert asked.options.level == "node"


MISTAKES = {
    "": "Missing option '--nproc-per-node'",
    "--nproc-per-node two": "'two' is not a valid integer",
    "--nproc-per-node 0": "0 is not in the range 1<=x<=1024",
    "--nproc-per-node 2 --mode lazy": "'lazy' is not one of 'graph', 'eager', 'both'",
    "--nproc-per-node 2 --slow": "No such option '--slow'",
    "--nproc-per-node 2 --nnodes 0": "0 is not in the range 1<=x<=65536",
    "--nproc-per-node 2 --node-rank 1": "node_rank: got 1, allowed with nnodes=1 are 0 to 0",
    "--nproc-per-node 2 --nnodes 2": "master_port: missing with nnodes=2",
    "--nproc-per-node 2 -b 1M -e 8K": "sizes: got 1048576 to 8192 bytes (-b, -e)",
    "--nproc-per-node 2 -b 2": "sizes: got 2 to 16777216 bytes",
    "--nproc-per-node 2 -b 8K -e 8K": "sizes: only 8192 bytes",
    "--nproc-per-node 2 -f 1": "a step factor (-f) of 1; allowed are more than 1",
    "--nproc-per-node 2 -b 8X": "got '8X'; allowed are whole bytes such as 512, 8K, 4M, 1G",
    "--nproc-per-node 2 -n 0": "'--iters': 0 is not in the range 1<=x<=1048576",
    "--nproc-per-node 2 -w -1": "'--warmup-iters': -1 is not in the range 0<=x<=1048576",
    "--nproc-per-node 2 --budget 0": "'--budget': 0.0 is not in the range x>0",
    "--nproc-per-node 2 --collectives reduce": "'--collectives': 'reduce' is not one of 'all-reduce'",
    "--nproc-per-node 4 --group-sizes 3": "group sizes: got 3; allowed are 2, 4",
    "--nproc-per-node 4 --group-sizes x": "'--group-sizes': 'x' is not a valid integer",
    "--nproc-per-node 4 --group-sizes=": "'--group-sizes': an empty word in ''",
    "--nproc-per-node 2 --collectives all-reduce,": "'--collectives': an empty word in 'all-reduce,'",
    "--nproc-per-node 2 --shares 3/1/1": "shares '3/1/1': got 3 for an axis of 2; give one for each",
    "--nproc-per-node 2 --shares 3/-1": "shares '3/-1': got -1; allowed are whole numbers from 1 on",
    "--nproc-per-node 2 --shares 0/0": "shares '0/0': got 0; allowed are whole numbers from 1 on",
    "--nproc-per-node 2 --shares 64/1": "shares '64/1': 65 units together; allowed are 64 at most",
    "--nproc-per-node 2 --shares 3/x": "'--shares': got '3/x'; allowed are whole numbers as 3/1",
    "--nproc-per-node 1 --shares 3": "shares: got them for one rank; start two and more",
    "--nproc-per-node 2 --shares 3/1 --mode graph": "shares: got mode graph; scripts over shares have",
    "--nproc-per-node 2 --kinds=": "'--kinds': an empty word in ''",
    "--nproc-per-node 2 --kinds a\x1b[31m": r"'--kinds': 'a\x1b[31m' is no name of a kind",
    "--from-nccl-tests a --level=": "'--level': '' is no name of a level; allowed are such as",
    "--from-nccl-tests a --level \x1b[31mred": r"'--level': '\x1b[31mred' is no name of a level",
    "--from-nccl-tests a --memory big": "memory: got 'big'; allowed are sizes > 0",
    "--from-nccl-tests a --nproc-per-node 2": "--nproc-per-node has no effect beside --from-nccl-tests",
    "--from-nccl-tests a --kinds x": "--kinds has no effect beside --from-nccl-tests",
    "--from-nccl-tests a --into x": "--into has no effect beside --from-nccl-tests",
    "--from-nccl-tests a --quick": "--quick has no effect beside --from-nccl-tests",
    "--from-nccl-tests a --nnodes 1": "--nnodes has no effect beside --from-nccl-tests",
    "--from-nccl-tests a --plot x": "--plot has no effect beside --from-nccl-tests",
    "--from-nccl-tests a --device h100 --memory 5GB": "--memory has no effect beside --device",
    "--nproc-per-node 2 --level gpu": "--level has no effect without --from-nccl-tests",
    "--nproc-per-node 2 --memory 5GB": "--memory has no effect without --from-nccl-tests",
    "--nproc-per-node 2 --into x": "--into needs --kinds",
    "--nproc-per-node 2 --kinds a,b --into x --device h100": "--device has no effect with two --kinds",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit-network", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert MISTAKES[line] in err
    assert out == "" and err.count("\n") == 1 and err.startswith("autoddl fit-network: ")
