"""`python -m autoddl merge`: join the shards of a checkpoint to what OneFlow loads."""

from __future__ import annotations

from pathlib import Path

import click

from autoddl.cli.app import say


@click.command("merge")
@click.argument("folder", metavar="FOLDER", type=Path)
@click.option(
    "-o", "--output", default="state.of", show_default=True, help="a folder, which flow.load reads"
)
def command(folder: Path, output: str) -> None:
    """Join the checkpoint in FOLDER, which step.save wrote, to one state dict.

    A graph on one device goes on from it, without autoddl: graph.load_state_dict(flow.load(FILE)).
    """
    from autoddl.checkpoint import sharded_files
    from autoddl.engine import engines
    from autoddl.engine.engines import ONEFLOW

    index = sharded_files.read_index(folder)
    arrays = {name: sharded_files.read(folder, index, name) for name in index.tensors}
    engines.load(ONEFLOW).write_state(arrays, index.facts.blocks, index.facts.graph, output)
    say(f"wrote {output}: {len(arrays)} tensors after {index.facts.steps} steps")
