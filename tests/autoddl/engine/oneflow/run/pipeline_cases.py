"""Models with the stages or halves that they are trained in, for the ranks of the tests here."""

from __future__ import annotations

from typing import Any


def _case(model: str, pipeline: int, mesh: str, micro_batches: int, **more: Any) -> dict[str, Any]:
    return {
        "model": model, "pipeline": pipeline, "mesh": mesh, "micro_batches": micro_batches, **more,
    }  # fmt: skip


def _parts(model: str, parts: list[str], micro_batches: int, **more: Any) -> dict[str, Any]:
    """Return a case with a stage on each of some meshes, in the states that `by` says."""
    by = {n: more.pop(n) for n in ("search", "ranks", "bounds") if n in more}
    return {"model": model, "parts": parts, "micro_batches": micro_batches, "by": by, **more}


ONE_BLOCK = {"depths": (0, 0, 1)}  # of TransGAN, behind both kinds of upsampling and in windows

# By number of ranks. Bounds are positions in the forward pass; weights have a normal distribution of
# the given scale, with which the loss falls in five steps.
CASES = {
    2: {
        "gpt in one stage": _case("gpt", 1, "2", 2, sizes={"layers": 1}),
        "vgg13": _case("vgg13", 2, "1", 2, optimizer="adam"),
        "gpt made again": _case("gpt", 2, "1", 4, recomputed=[0], sizes={"layers": 1}),
        "norm made again": _case("norm", 2, "1", 2, recomputed=[0]),
        "tied": _case("tied", 2, "1", 4, scale=0.5, bounds=[4]),
        "scored": _case("scored", 2, "1", 4, scale=0.2),
        "two": _case("two", 2, "1", 4, scale=0.2),
        "clipped": _case("clipped", 2, "1", 4, scale=0.3),
    },
    3: {
        "gpt on nodes of 2 and 1": {
            "model": "gpt", "cluster": "1*fastx2 + 1*fastx1", "micro_batches": 4,
            "options": {"pipeline": 2, "micro_batches": 4, "budget": 5}, "sizes": {"layers": 1},
        },
        "gpt on 2 and 1": _parts("gpt", ["2", "1"], 4, sizes={"layers": 1}),
        "gpt on 1 and 2": _parts("gpt", ["1", "2"], 4, search=["data parallel", "Megatron"]),
        "norm on 2 and 1, global": _parts("norm", ["2", "1"], 4, **{"global": True}),
        "unet on 2 and 1": _parts("unet", ["2", "1"], 2, scale=0.15, optimizer="adam"),
        "transgan on 2 and 1": _parts("transgan", ["2", "1"], 4, scale=0.15),
        "transgan on 1 and 2": _parts(
            "transgan", ["1", "2"], 2, scale=0.15, search=["data parallel", "Megatron"],
            sizes=ONE_BLOCK,
        ),
        "tied on 1 and 2": _parts("tied", ["1", "2"], 4, scale=0.5),
        "clipped on 2 and 1": _parts("clipped", ["2", "1"], 4, scale=0.3),
        "scored on 2 and 1": _parts("scored", ["2", "1"], 4, scale=0.2, ranks=[[0, 2], [1]]),
    },
    4: {
        "gpt on two kinds": {
            "model": "gpt", "cluster": "1*fastx2 + 1*slowx2", "micro_batches": 4,
            "options": {"pipeline": 3, "micro_batches": 4, "budget": 5},
        },
        "gpt on 2 x 2": _case("gpt", 2, "2", 4, optimizer="adam", sizes={"layers": 1}),
        "gpt, gathered": _parts("gpt", ["2", "2"], 2, search=["ZeRO 2", "ZeRO 2"]),
        "gpt in random states": _case(
            "gpt", 2, "2", 2, bounds=[33], options={"search": "random", "budget": 0.01, "seed": 1}
        ),
        "gpt cut anywhere": _case("gpt", 4, "1", 8, bounds=[7, 30, 61]),
        "unet on 2 x 2": _case("unet", 2, "2", 2, optimizer="adam", scale=0.15),
        "unet made again": _case("unet", 4, "1", 4, scale=0.2, recomputed=[0, 1, 2]),
        "norm on 2 x 2": _case("norm", 2, "2", 2, options={"pin": {"input.*": "S0"}}),
    },
    6: {
        "gpt on 2x2 and 2": _parts("gpt", ["2x2", "2"], 2, search=["SUMMA", "Megatron"]),
        "unet on 2 and 2x2": _parts("unet", ["2", "2x2"], 2, scale=0.15),
        "tied on 2 and 2x2": _parts(
            "tied", ["2", "2x2"], 4, scale=0.5, search=["data parallel", "SUMMA"], bounds=[4]
        ),
        "transgan on 2x2 and 2": _parts(
            "transgan", ["2x2", "2"], 2, scale=0.15, search=["SUMMA", "Megatron"]
        ),
        "transgan on 2 and 2x2": _parts(
            "transgan", ["2", "2x2"], 2, scale=0.15, sizes=ONE_BLOCK
        ),
    },
    8: {"gpt on 2 x 2x2": _case("gpt", 2, "2x2", 2, sizes={"layers": 1})},
}  # fmt: skip

# Models that train in two halves of the batch, and their meshes, by number of ranks.
HALVES = {
    1: [("gpt", None), ("vgg13", None), ("BERT-SGMoE", None), ("BERT-Switch", None)],
    2: [("gpt", "2"), ("vgg13", "2"), ("BERT-SGMoE", "2"), ("BERT-Switch", "2")],
    4: [("gpt", "2x2"), ("vgg13", "4"), ("BERT-SGMoE", "2x2"), ("BERT-Switch", "4")],
}

# Plans under which a model is trained that was built without memory.
ABSTRACT = {
    "4": {"mesh": "4", "search": "ZeRO 2"},
    "2x2": {"mesh": "2x2", "search": "SUMMA"},
    "two stages": {"mesh": "2", "pipeline": 2, "micro_batches": 2},
}
