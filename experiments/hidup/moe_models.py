"""The paper's four models as programs, and its table 1.

Eight layers of width 768 and 12 heads, every second one with experts: BERT with one expert a GPU on
sequences of 128 tokens (WikiText-103), ViT with two on images of Cifar-10. Both grow with the GPUs. The
paper does not say how large ViT's patches are; 4 × 4 pixels give 65 tokens. Its other parameters:

    BERT-SGMoE on 8 GPUs: 241 M in the paper, 215 M here and 25.6 M of a second table of the vocabulary
    at the output, which ours shares with the input: 240.7 M.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from autoddl.sbp.program import Program
from experiments.lib import frames
from experiments.lib.programs import captured

_ENCODER = {"layers": 8, "width": 768, "heads": 12, "every": 2, "factor": 1.25, "balance": 0.0}
_BERT = {**_ENCODER, "sequence": 128, "vocabulary": 33280}
_VIT = {**_ENCODER, "image": 32, "patch": 4, "classes": 10}
PER_GPU = 32  # sequences or images; the paper does not say


@dataclass(frozen=True)
class MoeModel:
    """A model of table 1: a model of the zoo with these sizes, and its parameters in millions."""

    zoo: str
    sizes: dict[str, Any] = field(hash=False)
    experts: int
    millions: tuple[int, int]

    def program(self, folder: Path, gpus: int, *, per_gpu: int = PER_GPU, **more: Any) -> Program:
        """Return a step of the model on so many GPUs, with the batch and the experts of all."""
        own = {"experts": gpus * self.experts, "batch": gpus * per_gpu, "optimizer": "adam"}
        sizes = {**self.sizes, **own, **more}
        name = "-".join(f"{size}" for size in (self.zoo, *sizes.values()))
        return replace(captured(folder / f"{name}.json", self.zoo, "base", **sizes), device="cuda")


MODELS = {
    "BERT-SGMoE": MoeModel("bert_moe", {**_BERT, "kind": "sgmoe"}, 1, (89, 19)),
    "BERT-Switch": MoeModel("bert_moe", {**_BERT, "kind": "switch"}, 1, (89, 19)),
    "ViT-SGMoE": MoeModel("vit_moe", {**_VIT, "kind": "sgmoe"}, 2, (38, 38)),
    "ViT-Switch": MoeModel("vit_moe", {**_VIT, "kind": "switch"}, 2, (38, 38)),
}
OPERATORS = {"BERT-SGMoE": 250, "BERT-Switch": 250, "ViT-SGMoE": 254, "ViT-Switch": 254}
SHOWN: frames.Formats = {
    "model": "{}", "gpus": "{}", "ops": "{:,}", "paper_ops": "{}", "parameters": "{:,.1f} M",
    "untied": "{:,.1f} M", "paper": "{:,} M", "off": "{:+.1%}",
}  # fmt: skip


def table1(folder: Path, gpus: int = 8) -> pd.DataFrame:
    """Return the parameters of all models beside the paper's; `untied` has a second vocabulary.

    Ops can't be compared: ours are those of a whole step, each part of a norm by itself.
    """
    rows = []
    for name, model in MODELS.items():
        program = model.program(folder, gpus)
        every = sum(program.tensor[p.tensor].elements for p in program.parameters) / 1e6
        untied = every + model.sizes.get("vocabulary", 0) * model.sizes["width"] / 1e6
        fixed, by_gpu = model.millions
        paper = fixed + by_gpu * gpus
        rows.append(
            {
                "model": name, "gpus": gpus, "ops": len(program.ops), "paper_ops": OPERATORS[name],
                "parameters": every, "untied": untied, "paper": paper, "off": untied / paper - 1,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
