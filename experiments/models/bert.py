"""BERT: masked-LM (and next-sentence) pre-training of a post-norm encoder (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

from experiments.models.training import Built, cross_entropy
from experiments.models.transformer import MASKED, EncoderBlock, FeedForward, LossGraph

SIZES: dict[str, dict[str, Any]] = {
    "toy": {"layers": 1, "width": 16, "heads": 4, "sequence": 8, "vocabulary": 64, "batch": 8},
    "bert_base": {
        "layers": 12, "width": 768, "heads": 12, "sequence": 512, "vocabulary": 30522, "batch": 32,
    },
    "bert_large": {
        "layers": 24, "width": 1024, "heads": 16, "sequence": 512, "vocabulary": 30522, "batch": 32,
    },
}  # fmt: skip

PADDING, IGNORED = 0, -100  # token id that pads; label of a token that is not predicted
SEGMENTS = 2


class Bert(nn.Module):
    """Token ids and segment ids, each (batch, sequence) → hidden states (…, width)."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        sequence: int,
        vocabulary: int,
        feed_forward: FeedForward | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.token = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.token.weight, std=0.02)  # it is the head's table, too
        self.position = nn.Parameter(flow.zeros(sequence, width))
        self.segment = nn.Embedding(SEGMENTS, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        options: dict[str, Any] = {"feed_forward": feed_forward, "dropout": dropout}
        self.blocks = nn.ModuleList(
            [
                EncoderBlock(width, heads, pre_norm=False, epsilon=1e-12, **options)
                for _ in range(layers)
            ]
        )

    def forward(self, ids: flow.Tensor, segments: flow.Tensor) -> flow.Tensor:
        batch, length = ids.shape
        padding = (ids == PADDING).to(flow.float32)
        bias = padding.reshape(batch, 1, 1, length) * MASKED
        x = self.drop(self.norm(self.token(ids) + self.position + self.segment(segments)))
        for block in self.blocks:
            x = block(x, bias)
        return x


class PreTraining(nn.Module):
    """Ids, segments, labels (all (batch, sequence)) and, with `next_sentence`, (batch,) → loss.

    The masked-LM head shares its table with the token embedding. With `places` (batch, count) it sees
    only the tokens there, whose labels are (batch, count), too.
    """

    def __init__(self, encoder: Bert, *, next_sentence: bool) -> None:
        super().__init__()
        vocabulary, width = encoder.token.weight.shape
        self.encoder = encoder
        self.transform = nn.Linear(width, width)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(flow.zeros(vocabulary))
        self.pool = nn.Linear(width, width) if next_sentence else None
        self.sentence = nn.Linear(width, 2) if next_sentence else None

    def forward(
        self,
        ids: flow.Tensor,
        segments: flow.Tensor,
        labels: flow.Tensor,
        follows: flow.Tensor | None = None,
        places: flow.Tensor | None = None,
    ) -> flow.Tensor:
        x = self.encoder(ids, segments)
        chosen = x if places is None else flow._C.batch_gather(x, places)
        hidden = self.norm(self.act(self.transform(chosen)))
        logits = flow.matmul(hidden, self.encoder.token.weight.transpose(0, 1)) + self.bias
        loss = cross_entropy(logits, labels)
        if self.pool is None or self.sentence is None:
            return loss
        pooled = flow.tanh(self.pool(x[:, 0]))
        return loss + cross_entropy(self.sentence(pooled), follows)


def build(
    *, next_sentence: bool = False, predicted: int = 0, optimizer: str = "sgd", **sizes: Any
) -> Built:
    """Return (training graph, (ids, segments, labels[, follows[, places]])), all int64.

    `sizes` are those of Bert, the toy's where they are not given. The first three inputs have shape
    (batch, sequence): the last tokens of each row are padding, a seventh of the labels is not
    IGNORED. `follows` (batch,) comes with `next_sentence`. Where so many tokens are `predicted` of each
    row, labels are those of `places`, both (batch, predicted); then the next sentence is, too.
    """
    sizes = SIZES["toy"] | sizes
    batch = sizes.pop("batch")
    inputs = examples(batch, sizes["sequence"], sizes["vocabulary"])
    model = PreTraining(Bert(**sizes), next_sentence=next_sentence or predicted > 0)
    if predicted:
        ids, segments, _, follows = inputs
        places = np.tile(np.arange(predicted), (batch, 1))
        inputs = ids, segments, ids[:, :predicted].copy(), follows, places
    used = 5 if predicted else 4 if next_sentence else 3
    return LossGraph(model, optimizer), tuple(map(flow.tensor, inputs[:used]))


def examples(batch: int, sequence: int, vocabulary: int) -> tuple[np.ndarray, ...]:
    """Return ids, segments, labels and whether the second sentence follows the first."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, vocabulary, (batch, sequence))
    ids[:, sequence - sequence // 8 :] = PADDING
    segments = np.tile(np.arange(sequence) >= sequence // 2, (batch, 1)).astype(np.int64)
    labels = np.where(np.arange(ids.size).reshape(ids.shape) % 7 == 0, ids, IGNORED)
    return ids, segments, labels, rng.integers(0, 2, batch)
