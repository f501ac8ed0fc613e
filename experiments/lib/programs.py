"""Programs of the zoo: traced once, in a process of its own, without memory for parameters.

`python -m experiments.lib.programs FILE MODEL SIZE PRECISION OVERRIDES HOW` is that process.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import autoddl
from autoddl.engine.oneflow.capture.cuda_stand_in import environment, traced_as_cuda
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program
from experiments import models
from experiments.lib.ranks import in_child
from experiments.lib.without_gpu import mixed


def captured(
    file: Path, model: str, size: str = "toy", precision: str = "", *, samples: int = 0,
    loss_scale: bool = False, **overrides: Any,
) -> Program:  # fmt: skip
    """Return the program of a model of the zoo, from the file if it is there.

    With a `precision` it is that which the model has on CUDA devices, where it computes so. With
    `loss_scale` losses are scaled dynamically. With `samples` the batch has so many, for which no inputs
    are made. What tracing took is kept beside it (`capture_facts`).

    Raises:
        AutoDDLError: no such model, or no such size of it; with a precision: no C compiler.
    """
    if not file.exists():
        print(f"tracing {model}, size {size}", flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        how = json.dumps({"samples": samples, "loss_scale": loss_scale})
        arguments = [str(file), model, size, precision, json.dumps(overrides), how]
        with tempfile.TemporaryDirectory(prefix="autoddl-trace-") as folder:
            in_child(__name__, arguments, env=environment(Path(folder)) if precision else {})
    return Program.load(file)


def capture_facts(file: Path) -> dict[str, float]:
    """Return how many seconds and bytes building a model and tracing it took."""
    facts: dict[str, float] = json.loads(file.with_suffix(".facts").read_text())
    return facts


def peak_bytes() -> int:
    """Return the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(file: str, model: str, size: str, precision: str, overrides: str, how: str = "{}") -> None:
    """Trace a model; write its program and what that took."""
    begin, options = time.perf_counter(), json.loads(how)
    with autoddl.abstract_parameters():
        graph, inputs = models.build(model, size, **json.loads(overrides))
    if options.get("samples"):  # a trace reads their shapes alone
        inputs = tuple(x[:1].expand(options["samples"], *x.shape[1:]) for x in inputs)
    mixed(graph, precision or "float32")
    if options.get("loss_scale"):
        import oneflow as flow

        graph.set_grad_scaler(flow.amp.GradScaler())
    with traced_as_cuda() if precision else nullcontext():
        program = autoddl.capture(graph, *inputs)
    facts = {"capture_s": time.perf_counter() - begin, "capture_bytes": peak_bytes()}
    Path(file).with_suffix(".facts").write_text(json.dumps(facts))
    part = Path(file).with_suffix(".part")
    program.save(part)
    part.replace(file)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AutoDDLError as error:
        sys.exit(str(error))
