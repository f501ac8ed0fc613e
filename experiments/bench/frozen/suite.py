"""What is frozen: the cases by sections, and what a worker is told of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# As they were bundled when the record was made: products in float32 there did not run on tensor cores.
PROFILE, FAST_PROFILE = (
    str(Path(__file__).parent / "profiles" / f"{name}.json") for name in ("a100-2x16", "h100")
)
BUDGET_S = 60.0  # of a search; on a machine of its own all but a few are proven in 2
STEPS = 1e-2  # nor are steps, and on a busy machine fewer candidates are looked at
CUTS = 1e-4  # plans with stages are not proven: what remains of the time decides on the last digits
ROOMY = "1000TB"  # plans are compared by time alone
MEDIUM = {
    "layers": 24, "width": 1024, "heads": 16, "sequence": 1024, "vocabulary": 50304, "batch": 32,
}  # fmt: skip
GPT3 = {
    "layers": 96, "width": 12288, "heads": 96, "sequence": 2048, "vocabulary": 50304, "batch": 128,
}  # fmt: skip
ZOO = {
    "mlp": "toy", "alexnet": "alexnet", "vgg13": "vgg13", "vgg19": "vgg19", "resnet50": "resnet50",
    "wide_resnet": "wide_resnet_250m", "unet": "unet", "gpt": "gpt2_small", "bert": "bert_base",
    "dnabert": "dnabert", "vit": "vit_base", "t5": "t5_small", "llama": "llama_7b",
    "dlrm": "kaggle", "bert_moe": "base", "vit_moe": "base",
}  # fmt: skip
"""Every model of the zoo at a size of its paper."""
SEARCHED = ("alexnet", "vgg13", "resnet50", "unet", "gpt", "bert", "vit", "t5", "dlrm", "bert_moe")
MESHES = ("2", "4", "8", "2x2", "2x4", "4x4")
MEMORY_MODELS, MEMORY_MESHES, MEMORY_PLANS = ("gpt", "vgg13", "bert_moe"), ("4", "2x2"), 10


@dataclass(frozen=True)
class Case:
    """One thing to do; `timed` where its seconds are compared, at most `slower` times the old ones.

    Where time may end a search costs may be off by `loose`, relatively, or without it by the kept gap.
    """

    section: str
    name: str
    task: Mapping[str, Any] = field(hash=False)
    timed: bool = False
    slower: float | None = None
    loose: float | None = None

    @property
    def key(self) -> str:
        """Return the name among all cases."""
        return f"{self.section}/{self.name}"


def cases() -> tuple[Case, ...]:
    """Return all cases, section by section."""
    sections = _search, _limited, _zoo, _steps, _pipelines, _demo, _scripts, _memory
    return tuple(case for section in sections for case in section())


def _search() -> Iterator[Case]:
    """Yield 12 models on 2 meshes each; that they are proven is part of the record."""
    for model in SEARCHED:
        for mesh in ("2x4", "2x2" if model == "t5" else "4x4"):  # T5 is not proven on 4x4
            task = _plan(model, ZOO[model], mesh=mesh, profile=PROFILE, memory=ROOMY)
            task["baselines"] = False  # they are in the zoo's rows
            yield Case("search", f"{model} {mesh}", _sum(task), timed=True)
    for name, sizes, meshes in (
        ("24-layer GPT", MEDIUM, ("4x8", "2x8")),
        ("GPT-3", GPT3, ("128x8", "64x8")),
    ):
        for mesh in meshes:
            bar = 1.1 if mesh == meshes[0] else None
            yield Case(
                "search", f"{name} {mesh}", _sum(_gpt(sizes, mesh, ROOMY)), timed=True, slower=bar
            )


def _limited() -> Iterator[Case]:
    yield Case("limited", "GPT-3 128x8 80GB", _sum(_gpt(GPT3, "128x8", "80GB")), timed=True)
    yield Case("limited", "24-layer GPT 4x8 80GB", _sum(_gpt(MEDIUM, "4x8", "80GB")), timed=True)


def _zoo() -> Iterator[Case]:
    """Yield every model on every mesh; the baselines' costs are among the figures."""
    for model, size in ZOO.items():
        for mesh in MESHES:
            task = _plan(model, size, mesh=mesh, profile=PROFILE, memory=ROOMY)
            yield Case("zoo", f"{model} {mesh}", _sum(task))


def _steps() -> Iterator[Case]:
    """Yield every model on every mesh, for the shortest step; time ends some searches."""
    for model, size in ZOO.items():
        for mesh in MESHES:
            task = _plan(model, size, mesh=mesh, profile=PROFILE, memory=ROOMY)
            yield Case("steps", f"{model} {mesh}", {**task, "baselines": False}, loose=STEPS)
    for name, sizes, mesh in (("24-layer GPT", MEDIUM, "4x8"), ("GPT-3", GPT3, "128x8")):
        task = {**_gpt(sizes, mesh, ROOMY), "baselines": False}
        yield Case("steps", f"{name} {mesh}", task, timed=True, loose=STEPS)


def _pipelines() -> Iterator[Case]:
    for model, mesh, stages, micro_batches in (
        ("bert", "4", 2, 4),
        ("bert", "2", 4, 8),
        ("gpt", "2x2", 2, 4),
        ("vgg13", "2", 2, 4),
        ("t5", "2", 4, None),
        ("vit", "4", 2, None),
    ):
        task = _plan(model, ZOO[model], mesh=mesh, profile=PROFILE, memory=ROOMY, pipeline=stages)
        task["baselines"] = False
        if micro_batches is not None:
            task["micro_batches"] = micro_batches
        name = f"{model} {stages} stages of {mesh}, {micro_batches or 'any'} micro-batches"
        yield Case("pipelines", name, task, timed=True, loose=CUTS)
    for model in ("bert", "gpt"):
        task = _plan(
            model, ZOO[model], cluster="2x4", profile=PROFILE, memory=ROOMY, pipeline="auto"
        )
        yield Case("pipelines", f"{model} auto 2x4", task, timed=True, loose=CUTS)


def _demo() -> Iterator[Case]:
    for search in ("exact", "data parallel", "Megatron"):
        where = {"cluster": "4"} if search == "exact" else {"mesh": "4"}
        task = _plan("gpt", "demo", overrides={"optimizer": "adamw"}, search=search, **where)
        yield Case("demo", search, task)


def _scripts() -> Iterator[Case]:
    for model in ZOO:
        yield _script(f"{model} data parallel 2x2", model, mesh="2x2", search="data parallel")
    for model in ("mlp", "gpt", "vgg13", "bert_moe"):
        yield _script(f"{model} 2x2", model, mesh="2x2")
    yield _script("gpt Megatron 2x2", "gpt", mesh="2x2", search="Megatron")
    yield _script("mlp 2 stages", "mlp", mesh="2", pipeline=2, micro_batches=2)
    yield _script("gpt 2 stages", "gpt", mesh="2", pipeline=2, micro_batches=2)
    yield _script("gpt 2 micro-batches", "gpt", mesh="2", pipeline=1, micro_batches=2)


def _memory() -> Iterator[Case]:
    for model in MEMORY_MODELS:
        for mesh in MEMORY_MESHES:
            task = {"kind": "memory", "model": model, "mesh": mesh, "plans": MEMORY_PLANS}
            yield Case("memory", f"{model} {mesh}", task)


def _plan(model: str, size: str, **options: Any) -> dict[str, Any]:
    return {"kind": "plan", "model": model, "size": size, "budget": BUDGET_S, **options}


def _sum(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task whose plan has the least sum of compute and communication, which is proven."""
    return {**task, "objective": "sum"}


def _gpt(sizes: Mapping[str, int], mesh: str, memory: str) -> dict[str, Any]:
    overrides = {**sizes, "optimizer": "adam"}
    where = {"mesh": mesh, "profile": FAST_PROFILE, "memory": memory, "device": "cuda"}
    return _plan("gpt", "medium", overrides=overrides, **where)


def _script(name: str, model: str, **options: Any) -> Case:
    return Case("scripts", name, {"kind": "script", "model": model, **options})
