"""Time training steps on a GPU with PyTorch: `python torch_steps.py STEPS.csv`, with PyTorch alone.

What the predicted compute of the bundled profiles of GPUs is held against (docs/accuracy.md): VGG13 and
GPT as the zoo has them, SGD with momentum in one kernel, in float32 (products in TF32, as OneFlow's
are) and in mixed precision.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, SEQUENCE = 51200, 1024
WARM, TIMED = 4, 12


class Block(nn.Module):
    """Attention and a four times wider MLP, each after a LayerNorm, with residuals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Return the output of the block, of the shape of x (batch, sequence, width)."""
        batch, length, width = x.shape
        size = width // self.heads
        qkv = self.qkv(self.ln1(x)).reshape(batch, length, self.heads, 3 * size).permute(0, 2, 1, 3)
        q, k, v = (qkv[..., i * size : (i + 1) * size] for i in range(3))
        scores = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(size), -1)
        mixed = torch.matmul(scores, v).permute(0, 2, 1, 3).reshape(batch, length, width)
        x = x + self.proj(mixed)
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Embedding(nn.Module):
    """Token and position embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(SEQUENCE, width))

    def forward(self, ids: Any) -> Any:
        """Return (batch, sequence, width) of ids (batch, sequence)."""
        return self.token(ids) + self.position


def gpt(layers: int, width: int, heads: int, batch: int) -> tuple[nn.Module, Any, Any]:
    """Return a GPT with its input and target."""
    blocks = [Block(width, heads) for _ in range(layers)]
    head = nn.Linear(width, VOCABULARY, bias=False)
    ids = torch.randint(0, VOCABULARY, (batch, SEQUENCE), device="cuda")
    return nn.Sequential(Embedding(width), *blocks, nn.LayerNorm(width), head), ids, ids


def vgg13(batch: int) -> tuple[nn.Module, Any, Any]:
    """Return VGG13 with its input and target."""
    layers: list[nn.Module] = []
    before = 3
    for channels in (64, 128, 256, 512, 512):
        for _ in range(2):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2, 2))
    layers += [
        nn.Flatten(),
        nn.Linear(before * 49, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
    ]
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    return nn.Sequential(*layers, nn.Linear(4096, 1000)), images, labels


CASES: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {
    "vgg13 batch 16": lambda: vgg13(16),
    "vgg13 batch 64": lambda: vgg13(64),
    "gpt 24 x 1024 batch 8": lambda: gpt(24, 1024, 16, 8),
    "gpt 24 x 1024 batch 2": lambda: gpt(24, 1024, 16, 2),
    "gpt 4 x 4096 batch 4": lambda: gpt(4, 4096, 32, 4),
}


def step_s(case: str, mixed: bool) -> float:
    """Return the median seconds of a training step, the device's."""
    model, x, y = CASES[case]()
    model = model.to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)
    taken = []
    for _ in range(WARM + TIMED):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, enabled=mixed):
            out = model(x)
            loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return median(taken[WARM:])


def main(target: str) -> None:
    """Time every case; write the CSV."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with open(target, "w", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(("case", "precision", "seconds"))
        for case in CASES:
            for mixed in (False, True):
                rows.writerow(
                    (case, "float16" if mixed else "float32", f"{step_s(case, mixed):.5g}")
                )
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
