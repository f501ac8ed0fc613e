"""The paper's four models as programs, and what is told of a plan of one.

Eight layers of width 768 and 12 heads, every second one with experts: BERT with one expert a GPU on
sequences of 128 tokens (WikiText-103), ViT with two on images of Cifar-10. Both grow with the GPUs. The
paper does not say how large ViT's patches are; 4 × 4 pixels give 65 tokens. Its other parameters:

    BERT-SGMoE on 8 GPUs: 241 M in the paper, 215 M here and 25.6 M of a second table of the vocabulary
    at the output, which ours shares with the input: 240.7 M.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoddl.plan.value import PlanValue
from autoddl.sbp.program import Program
from experiments.lib.frames import Row
from experiments.lib.programs import captured

PAPER: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text())
MODELS: dict[str, Any] = PAPER["models"]
PER_GPU = 32  # sequences or images; the paper does not say
MAIN = "BERT-SGMoE"
PROFILE, GPUS = "v100-8x", 8


def sizes_of(model: str, gpus: int, per_gpu: int = PER_GPU) -> dict[str, Any]:
    """Return the sizes of a model on so many GPUs, with the batch and the experts of all."""
    told, sizes = MODELS[model], PAPER["sizes"]
    return {
        **sizes["both"], **sizes[told["zoo"]], "kind": told["kind"],
        "experts": gpus * told["experts"], "batch": gpus * per_gpu, "optimizer": "adam",
    }  # fmt: skip


def program(model: str, folder: Path, gpus: int, per_gpu: int = PER_GPU) -> Program:
    """Return a training step of a model on so many GPUs."""
    zoo, own = MODELS[model]["zoo"], sizes_of(model, gpus, per_gpu)
    file = folder / f"{'-'.join(map(str, (zoo, *own.values())))}.json"
    return replace(captured(file, zoo, "base", **own), device="cuda")


def placement(plan: PlanValue) -> Row:
    """Return how many parameters are whole on every GPU, wholly cut, and cut along some axes only.

    `whole_between` are those that every unit of the mesh's first axis has whole, all machines on two.
    """
    kept = [plan.variables[p.tensor] for p in plan.program.parameters]
    whole = sum(not any(sbp.is_split for sbp in state) for state in kept)
    cut = sum(all(sbp.is_split for sbp in state) for state in kept)
    between = sum(not state[0].is_split for state in kept)
    partly = len(kept) - whole - cut
    return {"replicated": whole, "cut": cut, "partly": partly, "whole_between": between}
