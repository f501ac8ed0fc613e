"""Are remedies right that `optimize` proposes where nothing fits? Each is planned as it is written there.

Ten models get so little memory that no plan fits under options that forbid something, or under none. Of
each remedy the text is read as a user would: its options are planned with the budget of its trial, and
its step has to be the one that was proposed, within the memory. Fewer samples are traced anew.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pandas as pd
from click.testing import CliRunner

import autoddl
from autoddl import Budget
from autoddl.cli.plans.planning_options import PLANNING, asked
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.planner.memory_limits import parse_bytes
from autoddl.remedies.diagnosis import Diagnosis, Remedy
from autoddl.sbp.program import Program
from experiments.lib import cli, frames
from experiments.lib.programs import captured

FORMATS: dict[str, Any] = {
    "model": str, "limit": "{:,}", "needed": "{:,}", "remedies": "{}", "wrong": "{}", "in vain": "{}",
    "untried": "{}", "s": "{:.1f}", "s to follow": "{:.1f}",
}  # fmt: skip
LESS = 0.7  # of the memory before, until nothing fits


@dataclass(frozen=True)
class TightCase:
    """A model, the devices that it is planned for, and the user's options.

    The limit begins with this `share` of what the plan takes that has all memory.
    """

    model: str
    sizes: Mapping[str, Any]
    device: str
    options: Mapping[str, Any]
    share: float = 0.5

    def program(self, folder: Path, batch: int) -> Program:
        """Return the program for so many samples."""
        file = folder / f"{self.model}-{batch}.json"
        sizes = {"optimizer": "adam", **self.sizes, "batch": batch}
        return replace(captured(file, self.model, "toy", **sizes), device=self.device)


_GPT = {"layers": 4, "width": 512, "heads": 8, "sequence": 256, "vocabulary": 8192, "batch": 16}
_IMAGES = {"image": 64, "classes": 1000, "batch": 16}
_WIDE = {"widths": (256, 4096, 16384), "batch": 64}
_GPU = {"profile": "h100"}
CASES = {
    "GPT": TightCase("gpt", _GPT, "cuda", {"mesh": "2x4", "recompute": "none", "pipeline": 1, **_GPU}),
    "BERT": TightCase("bert", _GPT, "cuda", {"mesh": "4", "search": "Megatron", **_GPU}),
    "VGG13": TightCase("vgg13", {**_IMAGES, "channel_scale": 1, "dense": 4096}, "cuda",
                  {"mesh": "2x2", "search": "data parallel", **_GPU}, 0.6),
    "ResNet": TightCase("resnet50", {**_IMAGES, "channels": 64}, "cuda", {"mesh": "4", **_GPU}),
    "BERT-MoE": TightCase("bert_moe", {**_GPT, "layers": 2, "experts": 8}, "cpu",
                     {"mesh": "2x2", "profile": "cpu-loopback", "recompute": "none"}),
    "UNet": TightCase("unet", {"image": 64, "channels": 32, "batch": 16}, "cuda",
                 {"mesh": "4", "compute_stream": False, "pipeline": 1, **_GPU}, 0.3),
    "wide classifier": TightCase("mlp", _WIDE, "cpu",
                            {"mesh": "4", "profile": "cpu-loopback", "pin": {"*.weight": "B"}}),
    "Llama": TightCase("llama", {**_GPT, "groups": 4, "inner": 1024}, "cuda",
                  {"cluster": "2x4", "pipeline": 2, "micro_batches": 2, **_GPU}, 0.4),
    "ViT": TightCase("vit", {**_IMAGES, "layers": 4, "width": 256, "heads": 8, "patch": 8}, "cuda",
                {"cluster": "2x2", "objective": "communication", **_GPU}),
    "T5": TightCase("t5", {"layers": 2, "width": 256, "batch": 16}, "cpu",
               {"cluster": "4", "profile": "cpu-loopback"}),
}  # fmt: skip


def read_python(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's options as a remedy's text says for Python: `mesh="4x4" without pin`."""
    given, _, without = text.partition("without ")
    added = eval(f"dict({given.strip()})", {})
    return {**{k: v for k, v in options.items() if k not in without.split(" and ")}, **added}


def read_terminal(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of the command line's text: `--mesh 4x4 without --pin`."""
    given, _, without = text.partition("without ")
    found: list[dict[str, Any]] = []

    @click.command()
    @PLANNING
    def command(**words: Any) -> None:
        found.append({name: value for name, value in words.items() if value is not None})

    CliRunner().invoke(command, shlex.split(given), catch_exceptions=False, standalone_mode=False)
    (words,) = found
    named = {f"--{name.replace('_', '-')}" for name in asked(**words)} & set(given.split())
    added = {k: v for k, v in asked(**words).items() if f"--{k.replace('_', '-')}" in named}
    kept = {k: v for k, v in options.items() if f"--{k.replace('_', '-')}" not in without.split()}
    return {**kept, **added}


def short_of_memory(
    program: Program, options: Mapping[str, Any], share: float
) -> tuple[int, InfeasibleError, float]:
    """Return a limit within which nothing fits, the error that says so, and the seconds of that call."""
    roomy = autoddl.optimize(program, **options, memory="1TiB")
    limit = int(share * roomy.estimate.memory_bytes)
    while True:
        begin = time.perf_counter()
        try:
            autoddl.optimize(program, **options, memory=limit)
        except InfeasibleError as error:
            return limit, error, time.perf_counter() - begin
        limit = int(LESS * limit)


def followed(
    diagnosis: Diagnosis, options: Mapping[str, Any], program: Program,
    smaller: Callable[[int], Program],
) -> list[str]:  # fmt: skip
    """Plan each remedy as it is written, and return what is wrong; `smaller` has so many samples."""
    wrong = []
    for remedy in diagnosis.remedies:
        text, batch = remedy.change.text(), remedy.change.batch
        if batch is not None:
            texts, of = [dict(options)], smaller(batch[0])
        else:
            terminal = remedy.change.text(terminal=True)
            texts, of = [read_python(text, options), read_terminal(terminal, options)], program
            if texts[0] != texts[1]:
                wrong.append(f"{text}: on the command line it is {texts[1]}, in Python {texts[0]}")
        why = _why_wrong(remedy, of, {**texts[0], "budget": diagnosis.budget})
        wrong += [f"{text}: {why}"] if why else []
    return wrong


def _why_wrong(remedy: Remedy, program: Program, options: Mapping[str, Any]) -> str:
    try:
        plan = autoddl.optimize(program, **options)
    except AutoDDLError as error:
        return str(error).split("\n")[0]
    limit, step_s = parse_bytes(options["memory"]), plan.estimate.step_s
    if plan.estimate.memory_bytes > limit:
        return f"{plan.estimate.memory_bytes:,} B, more than {limit:,}"
    if abs(step_s - remedy.step_s) > 1e-9 * step_s:
        return f"a step of {step_s * 1e3:.4f} ms, not {remedy.step_s * 1e3:.4f}"
    return ""


@click.command(help=__doc__)
@cli.folder("results/remedies")
@cli.listed("--only", CASES)
@click.option("--evaluations", default=5e4, show_default=True, help="budget of each call")
def command(folder: Path, only: Sequence[str], evaluations: float) -> int:
    """Print the errors, what is wrong with their remedies, and a table."""
    rows, missed = [], 0
    for name in only:
        case = CASES[name]
        program = case.program(folder, case.sizes["batch"])
        options = {**case.options, "budget": Budget(evaluations=evaluations)}
        limit, error, seconds = short_of_memory(program, options, case.share)
        told = ", ".join(f"{k}={v}" for k, v in case.options.items())
        print(f"\n{name}, {told}\n{error}", flush=True)
        diagnosis = error.diagnosis
        if not isinstance(diagnosis, Diagnosis):
            raise AutoDDLError(f"--evaluations: got {evaluations:g}, too few for remedies")
        begin = time.perf_counter()
        given = {**options, "memory": limit}
        wrong = followed(diagnosis, given, program, partial(case.program, folder))
        print(*wrong, sep="\n", flush=True)
        missed += len(wrong)
        rows.append({
            "model": name, "limit": limit, "needed": diagnosis.needed_bytes or 0,
            "remedies": len(diagnosis.remedies), "wrong": len(wrong), "in vain": len(diagnosis.vain),
            "untried": len(diagnosis.untried), "s": seconds, "s to follow": time.perf_counter() - begin,
        })  # fmt: skip
    print(f"\n{frames.text(pd.DataFrame(rows), FORMATS)}")
    return cli.MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "proofs.remedies"))
