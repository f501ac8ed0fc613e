"""`run` keeps its own options and the script's apart; the launch itself is tested in launch/."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from autoddl.cli.app import main
from tests.support.rank_scripts import Write


def test_options_with_underscores_and_arguments_passed_through(
    write: Write, tmp_path: Path
) -> None:
    script = write("print(json.dumps([__name__, sys.argv, sys.path[0]]))")
    logs = tmp_path / "new" / "logs"
    arguments = ["--nproc_per_node=5", "-m", "--", "--x_y", "--"]
    assert main(["run", "--nproc_per_node", "2", "--log_dir", str(logs), script, *arguments]) == 0
    for rank in range(2):
        seen = json.loads((logs / f"rank{rank}.log").read_text())
        assert seen == ["__main__", [script, *arguments], str(tmp_path)]


def test_module_form(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    script = write("print(json.dumps([__name__, __package__, sys.argv]))", "package/train.py")
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    options = ["--nproc-per-node", "2", "--log-dir", "logs"]
    assert main(["run", *options, "-m", "package.train", "--nnodes", "2"]) == 0
    seen = json.loads((logs / "rank1.log").read_text())
    assert seen == ["__main__", "package", [script, "--nnodes", "2"]]
    assert main(["run", *options, "-m", "package.missing"]) == 1
    assert "No module named package.missing" in (logs / "rank0.log").read_text()


def test_ranks_are_told_the_kind_of_their_node(write: Write, tmp_path: Path) -> None:
    script = write("print(os.environ.get('AUTODDL_KIND'))")
    for kind in ("", "v100"):
        options = ["--nproc-per-node", "1", "--log-dir", str(tmp_path / "logs")]
        assert main(["run", *options, *(["--kind", kind] if kind else []), script]) == 0
        assert (tmp_path / "logs" / "rank0.log").read_text().split() == [kind or "None"]


BAD = {
    "--nproc-per-node 0 SCRIPT": "nproc_per_node: got 0; allowed are 1 to 1024",
    "--nproc-per-node two SCRIPT": "Invalid value for '--nproc-per-node': 'two' is not a valid integer",
    "--nproc-per-node": "Option '--nproc-per-node' requires an argument",
    "SCRIPT": "Missing option '--nproc-per-node'",
    "--nproc-per-node 2": "nothing to run",
    "--nproc-per-node 2 -m": "nothing to run",
    "--nproc-per-node 2 missing.py": "script 'missing.py' does not exist in ",
    "--nproc-per-node 2 PYTHON SCRIPT": "command: starts with the interpreter",
    "--nproc-per-node 2 --kind 4x SCRIPT": "Invalid value for '--kind': '4x' is no name of a kind",
    "--nproc-per-node 2 --bogus 1 SCRIPT": "No such option '--bogus'",
    "--nproc-per-node 2 --nnodes 0 SCRIPT": "Invalid value for '--nnodes': 0 is not in the range",
    "--nproc-per-node 2 --nnodes 2 SCRIPT": "master_port: missing with nnodes=2",
    "--nproc-per-node 2 --node-rank 1 SCRIPT": "node_rank: got 1, allowed with nnodes=1 are 0 to 0",
    "--nproc-per-node 2 --nnodes 2 --node-rank -1 --master-port 9 SCRIPT": "node_rank: got -1",
    "--nproc-per-node 2 --master-port 70000 SCRIPT": "master_port: got 70000, allowed are 1 to",
    "--nproc-per-node 2 --master-port PORT SCRIPT": "master_port: PORT is in use on this machine",
    "--nproc-per-node 2 --timeout -3 SCRIPT": "timeout: got -3.0; allowed are",
    "--nproc-per-node 2 --timeout nan SCRIPT": "timeout: got nan; allowed are",
    "--nproc-per-node 2 --log-dir SCRIPT SCRIPT": "log_dir: cannot write to ",
    "--nproc-per-node 1:2 SCRIPT": "nproc_per_node: got 1:2, but ranks are not started again; give",
    "--nproc-per-node 2 --master-addr nohost SCRIPT": "master_addr: 'nohost' can't be resolved (",
    "--nproc-per-node 2 --master-addr= SCRIPT": "master_addr: '' can't be resolved",
    "--nproc-per-node 1 --nnodes 2 --node-rank 1 --master-port 9 --master-addr a..b SCRIPT": (
        "master_addr: 'a..b' can't be resolved (no name of a host); give a name or address under which"
    ),
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_gives_one_line_and_2(
    write: Write, capsys: pytest.CaptureFixture[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, known = write(""), socket.getaddrinfo

    def resolve(host: str, *more: Any) -> Any:
        if host == "nohost":
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return known(host, *more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = {"SCRIPT": script, "PYTHON": sys.executable, "PORT": str(server.getsockname()[1])}
        assert main(["run", *(words.get(word, word) for word in line.split())]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("autoddl run: " + BAD[line].replace("PORT", words["PORT"]))


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    assert "--nproc-per-node N" in capsys.readouterr().out
