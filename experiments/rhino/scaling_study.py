"""Rhino's strong and weak scaling (seed 004, §7.2 to 7.4): `python -m experiments.rhino.scaling_study`.

    strong  GPT-Medium, four sequences in all, on 1 to 8 devices: which parameters are cut where the sum
            of compute and communication counts, as in the paper's model, and steps in which both overlap
    weak    VGG19 with a million classes, UNet and DNABERT, as many samples a device on 1 to 8 of them:
            what data parallelism takes beside the best plan
    mfu     GPT and GShard MoE of the paper's sizes on 1 to 8 devices, without stages and, of more
            samples, with stages or in micro-batches: the part of V100's peak that products reach

M8 is a node of 8 V100s with NVLink, S1 nodes of one each, 100 Gbit/s between them; both are priced by
v100-8x. All is predicted. Kept rows are used again. The exit code is 1 where GPT-Medium's projections to
Q, K and V are whole on 8 devices or something in its layers is cut on two, where one device holds the
VGG19 or 8 do not, and where data parallelism loses more than 1 % on the others.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.roofline import OpWork
from autoddl.plan.value import PlanValue
from autoddl.planner import choose
from autoddl.sbp.program import Program
from autoddl.search.budget import EVALUATION_S, Budget
from experiments.lib import cli, frames
from experiments.lib import oneflow_problems as problems
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import captured

PROFILE, DATA = "v100-8x", "data parallel"
PEAK = 15.6e12  # flop/s in float32; what the paper divides by
LEVELS = {"M8": "gpu", "S1": "node"}
DEVICES = (1, 2, 4, 8)
STRONG = ((1, 4), (2, 4), (4, 4), (8, 4), (8, 8))  # devices and sequences; the paper has 4 in all
TOLD = {2: "data parallel", 4: "one variable of layer 0", 8: "all Q, K, V"}
# Model, size, optimizer and samples a device; the paper does not tell the optimizer.
WEAK = {
    "VGG19, Adam": ("vgg19", "vgg19_million", "adam", 128),
    "VGG19, SGD": ("vgg19", "vgg19_million", "plain_sgd", 128),
    "UNet": ("unet", "unet", "adam", 16),
    "DNABERT": ("dnabert", "dnabert", "adam", 32),
}
LARGE, CLOSE = "VGG19", 0.01  # what data parallelism loses at most on the others
SIZES = {  # by number of devices
    "gpt": ("medium", "large", "xl", "gpt_2_7b"),
    "bert_moe": ("moe_8e_380m", "moe_8e_760m", "moe_16e_1_3b", "moe_16e_2_4b"),
}
# By model and way the samples in all, what is asked for, and the MFU of the paper. A micro-batch has as
# many samples as there are without.
MFU: dict[tuple[str, str], tuple[int, Row, str]] = {
    ("gpt", "one stage"): (4, {}, "<= 68.1 %"),
    ("bert_moe", "one stage"): (8, {}, "<= 62.0 %"),
    ("gpt", "stages"): (64, {"pipeline": "auto"}, "54.0 to 75.9 %"),
    ("bert_moe", "stages"): (256, {"pipeline": "auto"}, "<= 55.1 %"),
    ("gpt", "in turn"): (64, {"micro_batches": 16}, "54.0 to 75.9 %"),
    ("bert_moe", "in turn"): (256, {"micro_batches": 32}, "<= 55.1 %"),
}


def traced(folder: Path, model: str, size: str, batch: int, optimizer: str = "adam") -> Program:
    """Return a training step on CUDA devices; it is traced once."""
    file = folder / f"{model}-{size}-{optimizer}-of-{batch}.json"
    return replace(captured(file, model, size, samples=batch, optimizer=optimizer), device="cuda")


def planned(step: Program, budget: Budget, **options: Any) -> PlanValue | None:
    """Return the best plan, without stages if nothing else is asked for; None where none fits."""
    asked = {"profile": PROFILE, "pipeline": 1, "budget": budget, **options}
    with suppress(InfeasibleError):
        return choose.best(problems.read(step, **asked), 1)[0]
    return None


def cut(plan: PlanValue) -> list[str]:
    """Return the parameters that some axis cuts, in the order of the model."""
    held = [p.tensor for p in plan.program.parameters]
    return [name for name in held if any(sbp.is_split for sbp in plan.variables[name])]


def layer(parameter: str) -> str:
    """Return whose parameter it is, in whatever block: "fc1" for "model.blocks.3.fc1.weight"."""
    return parameter.removesuffix(".weight").removesuffix(".bias").split(".")[-1]


def cut_text(plan: PlanValue) -> str:
    """Return how many parameters of which layers are cut: "qkv 48/48, head 1/1"."""
    every = Counter(layer(p.tensor) for p in plan.program.parameters)
    found = Counter(map(layer, cut(plan)))
    return ", ".join(f"{name} {found[name]}/{every[name]}" for name in every if found[name])


def strong_row(platform: str, devices: int, batch: int, budget: Budget, folder: Path) -> Row:
    """Return what is cut on one axis of devices, and steps beside those of data parallelism.

    The last of them is that of the best plan on whatever mesh.
    """
    step, level = traced(folder, "gpt", "medium", batch), LEVELS[platform]
    mesh = f"[{level} {devices}]"
    least = planned(step, budget, mesh=mesh, objective="sum")
    fast = planned(step, budget, mesh=mesh)
    cluster = (1, devices) if level == "gpu" else (devices, 1)
    free = planned(step, budget, cluster=cluster)
    assert least is not None and fast is not None and free is not None, "all of them fit"
    best = min(fast, free, key=lambda plan: plan.estimate.step_s)
    data = next(each for each in least.baselines if each.name == DATA)
    return {
        "cut": cut_text(least), "layers_cut": sum("blocks" in name for name in cut(least)),
        "compute_s": least.estimate.compute_s, "sent_s": least.estimate.communication_s,
        "gap": least.search.gap, "data_compute_s": data.compute_s, "data_sent_s": data.communication_s,
        "data_s": data.step_s, "step_s": fast.estimate.step_s, "step_gap": fast.search.gap,
        "any_s": best.estimate.step_s, "mesh": str(best.mesh),
    }  # fmt: skip


def weak_row(name: str, devices: int, budget: Budget, folder: Path) -> Row:
    """Return the step and the memory of data parallelism and of the best plan on M8, where they fit."""
    model, size, optimizer, samples = WEAK[name]
    step = traced(folder, model, size, samples * devices, optimizer)
    best = planned(step, budget, cluster=(1, devices))
    data = planned(step, budget, mesh=f"[gpu {devices}]", search=DATA)
    row: Row = {"parameters": sum(step.tensor[p.tensor].elements for p in step.parameters)}
    for which, plan in (("best", best), ("data", data)):
        row[f"{which}_s"] = plan and plan.estimate.step_s
        row[f"{which}_bytes"] = plan and plan.estimate.memory_bytes
    return row | {"mesh": best and str(best.mesh)}


def product_flops(step: Program) -> float:
    """Return the flops of all matrix products and convolutions of a step, of both passes."""
    works = []
    for op in step.ops:
        tensors = {operand: step.tensor[name] for operand, name in op.operands}
        works.append(OpWork.local(op, tensors, [t.shape for t in tensors.values()]))
    return sum(work.flops for work in works if work.family in ("matmul", "conv"))


def mfu_row(model: str, way: str, devices: int, budget: Budget, folder: Path) -> Row:
    """Return the part of the peak on M8 that the products of a step reach; none where nothing fits."""
    (batch, asked, paper), size = MFU[model, way], SIZES[model][DEVICES.index(devices)]
    step = traced(folder, model, size, batch)
    plan = planned(step, budget, cluster=(1, devices), **asked)
    row: Row = {"size": size, "batch": batch, "paper": paper}
    if plan is None:
        return row | dict.fromkeys(("plan", "step_s", "micro_batches", "bytes", "mfu"))
    step_s, again = plan.estimate.step_s, plan.parts[0].recomputed
    return row | {
        "plan": plan.devices_text + (", layers again" if again else ""), "step_s": step_s,
        "micro_batches": plan.micro_batches, "bytes": plan.estimate.memory_bytes,
        "mfu": product_flops(step) / (devices * PEAK * step_s),
    }  # fmt: skip


def _scaled(by: float) -> Callable[[float], str]:
    return lambda value: f"{by * value:.1f}"


COLUMNS: dict[str, frames.Formats] = {
    "strong": {
        "platform": "{}", "devices": "{}", "batch": "{}", "cut": "{}", "paper": "{}",
        "sum_s": _scaled(1e3), "data_sum_s": _scaled(1e3), "gap": "{:.1%}",
        "step_s": _scaled(1e3), "step_gap": "{:.1%}", "data_s": _scaled(1e3),
        "any_s": _scaled(1e3), "mesh": "{}", "speedup": "{:.2f}",
    },
    "weak": {
        "model": "{}", "devices": "{}", "parameters": _scaled(1e-6), "best_s": _scaled(1e3),
        "best_bytes": _scaled(1e-9), "mesh": "{}", "data_s": _scaled(1e3), "loss": "{:.2%}",
        "throughput": "{:.3f}",
    },
    "mfu": {
        "model": "{}", "way": "{}", "devices": "{}", "size": "{}", "batch": "{}", "plan": "{}",
        "micro_batches": "{:.0f}", "step_s": _scaled(1e3), "mfu": "{:.1%}", "paper": "{}",
    },
}  # fmt: skip


def told(study: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with what is relative to the first row of the same model, or to the best plan."""
    if study == "strong":
        ones = frame[frame.devices == 1].set_index("platform").any_s
        paper = frame.devices.where(frame.batch == STRONG[0][1]).map(TOLD)
        faster = frame.platform.map(ones) * frame.batch / STRONG[0][1] / frame.any_s
        sums = frame.compute_s + frame.sent_s, frame.data_compute_s + frame.data_sent_s
        return frame.assign(paper=paper, sum_s=sums[0], data_sum_s=sums[1], speedup=faster)
    if study == "weak":
        best, data = frame.best_s.astype(float), frame.data_s.astype(float)
        first = best.groupby(frame.model).transform("first")  # of the fewest devices that hold it
        return frame.assign(loss=data / best - 1, throughput=first / best)
    return frame


def misses(study: str, frame: pd.DataFrame) -> pd.Series[Any]:
    """Tell of each row whether it misses what the paper tells."""
    if study == "strong":
        whole = ~frame.cut.str.contains("qkv 48/48") & (frame.devices == 8) & (frame.batch == 4)
        return whole | ((frame.devices == 2) & (frame.layers_cut > 0))
    if study == "weak":
        large, fits = frame.model.str.startswith(LARGE), frame.best_s.notna()
        wrong = (fits & (frame.devices == 1)) | (~fits & (frame.devices == 8))
        return wrong.where(large, ~(frame.loss <= CLOSE))
    return pd.Series(False, index=frame.index)


def cases(study: str) -> Iterator[tuple[Row, Callable[[Budget, Path], Row]]]:
    """Yield what tells the rows of a study apart, and what makes the rest of each."""
    if study == "strong":
        for platform, (devices, batch) in product(LEVELS, STRONG):
            key = {"platform": platform, "devices": devices, "batch": batch}
            yield key, partial(strong_row, platform, devices, batch)
    elif study == "weak":
        for model, devices in product(WEAK, DEVICES):
            yield {"model": model, "devices": devices}, partial(weak_row, model, devices)
    else:
        for (model, way), devices in product(MFU, DEVICES):
            key = {"model": model, "way": way, "devices": devices}
            yield key, partial(mfu_row, model, way, devices)


@click.command(help=__doc__)
@cli.listed("--studies", COLUMNS)
@click.option(
    "--budget",
    default=20.0,
    show_default=True,
    help="seconds for each plan; but for mfu they are counted in work",
)
@cli.folder("out/rhino")
def command(studies: Sequence[str], budget: float, folder: Path) -> int:
    """Make what is missing, print and write the tables."""
    kept, missed = RowStore(folder / "scaling_rows.jsonl"), False
    for study in studies:
        work, found = Budget(evaluations=budget / EVALUATION_S), list[Row]()
        if study == "mfu":  # what takes longest there is memory, which counts as no work
            work = Budget(seconds=budget)
        for case, make in cases(study):
            key = {"study": study, **case, "budget_s": budget}
            found.append(kept.once(key, partial(make, work, folder)))
            print(".", end="", flush=True)
        frame = told(study, pd.DataFrame(found))
        missed |= bool(misses(study, frame).any())
        print(f"\n{study}\n{frames.text(frame, COLUMNS[study])}", flush=True)
        frames.save(frame, folder, f"scaling_{study}")
    return cli.MISSED if missed else 0


if __name__ == "__main__":
    sys.exit(cli.run(command, "rhino.scaling_study"))
