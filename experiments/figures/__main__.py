"""All figures and tables, one after the other, and the page of them: `python -m experiments.figures`.

Each script keeps what is finished in its folder: a run that is cut off goes on. One that fails or misses
a bar does not end the others; the exit code is then 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import click

from experiments.figures import results
from experiments.lib import cli, ranks


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="fewer models, passes and steps")
@click.option("--write", "only_write", is_flag=True, help="run nothing; write the page")
@click.option("--document", type=click.Path(path_type=Path), default=Path("docs/results.md"),
              show_default=True)  # fmt: skip
@cli.folder("out/figures")
def command(quick: bool, only_write: bool, document: Path, folder: Path) -> int | None:
    """Run all scripts, write the page."""
    wanted = [part for part in results.PARTS if not (quick and part.quick is None)]
    failed = [] if only_write else [part for part in wanted if not _done(part, quick, folder)]
    document.write_text(results.page(folder, document.with_suffix("")))
    print(f"wrote {document}")
    for part in failed:
        print(f"missed a bar or failed: python -m {part.module}")
    return cli.MISSED if failed else None


def _done(part: results.ResultPart, quick: bool, folder: Path) -> bool:
    """Run a part's script; tell whether it went well."""
    place = part.file(folder).parent
    words = [*((quick and part.quick) or ()), "--folder", str(place)]
    if part.kind == results.MEASURED:  # once, for all that are measured
        words += ["--devices", str(folder)]
    line = [sys.executable, "-m", part.module, *words]
    print(f"figures: {' '.join(line[1:])}", file=sys.stderr, flush=True)
    begin = time.perf_counter()
    code = subprocess.run(line, env={**os.environ, **ranks.environment()}, check=False).returncode
    print(f"figures: {code}, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "figures"))
