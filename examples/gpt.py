"""A GPT of 1.3 billion parameters, to be planned for GPUs on a machine that has none.

python -m autoddl capture examples/gpt.py:build --device cuda -o gpt.json
python -m autoddl plan gpt.json --mesh 4x8 --profile h100 --evaluations 20000 -o gpt_plan.json
python -m autoddl explain gpt_plan.json

The first command needs OneFlow and a C compiler, and no memory for the model; the others need neither.
"""

import oneflow as flow
from oneflow import nn

WIDTH, HEADS, LAYERS, TOKENS, VOCABULARY, BATCH = 2048, 16, 24, 1024, 50304, 32


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        size = WIDTH // HEADS
        heads = self.qkv(x).reshape(BATCH, TOKENS, HEADS, 3 * size).permute(0, 2, 1, 3)
        q, k, v = (heads[..., i * size : (i + 1) * size] for i in range(3))
        weights = flow.softmax(flow.matmul(q, k.transpose(-1, -2)) / size**0.5, dim=-1)
        mixed = flow.matmul(weights, v).permute(0, 2, 1, 3)
        return self.proj(mixed.reshape(BATCH, TOKENS, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.ln2, self.act = nn.LayerNorm(WIDTH), nn.GELU()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.fc2(self.act(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(flow.zeros(TOKENS, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Train(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.AdamW(model.parameters(), lr=1e-4))

    def build(self, ids, following):
        logits = self.model(ids).reshape(-1, VOCABULARY)
        loss = nn.functional.cross_entropy(logits, following.reshape(-1))
        loss.backward()
        return loss


def build():
    ids = flow.zeros(BATCH, TOKENS, dtype=flow.int64)
    return Train(GPT()), (ids, ids)
