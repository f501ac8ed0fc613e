"""Generated scripts on real ranks: the numbers of one process, with micro-batches added up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import autoddl
from autoddl.api import Plan
from autoddl.codegen.script_facts import inputs_of
from autoddl.engine.oneflow.model.script_model import SCRIPT as SCRIPTS
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.pipeline.pipeline_step import COMPUTE, PipelineStep, StageWork, TransferWork
from autoddl.perfmodel.pipeline.schedules import GPIPE, ONE_F_ONE_B
from autoddl.perfmodel.pipeline.searched_order import searched_order
from autoddl.perfmodel.pipeline.step_tasks import step_tasks
from autoddl.perfmodel.profile_entries import Link
from autoddl.planner.assemble import make_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import synchronised
from autoddl.sbp.rewrites.in_parts.whole_masks import with_whole_masks
from autoddl.search.rivals.random_sampling import random_assignment
from experiments.lib.oneflow_problems import build
from tests.autoddl.codegen import functional_models
from tests.autoddl.codegen.plans import generate
from tests.support.on_ranks import LIMIT_S, RankGroups
from tests.support.pipelines import in_stages, recomputing
from tests.support.unlike_parts import parted

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

SCRIPT = Path(__file__).parent / "rank_scripts" / "train.py"
ROOT = str(Path(__file__).parents[3])
STEPS = 3
RATES = {"sgd": 0.1, "adamw": 1e-3, "clipped_sgd": 0.1}  # as the zoo's graphs have them


@dataclass(frozen=True)
class Case:
    """A model under a plan: `stage_of` cuts it into stages, `uneven` is the batch to run it with."""

    name: str
    model: str
    mesh: str
    search: str = "SUMMA"
    stages: int = 1
    micro_batches: int = 1
    stage_of: Callable[[str], int | None] = lambda _: 0
    sizes: tuple[tuple[str, Any], ...] = ()
    uneven: int | None = None
    recomputed: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()  # meshes of stages of unlike shape, each with equally many ops
    checked: bool = False  # with a test of the state that each op makes, one op a line
    # In float64 where rounding decides over ReLUs: ResNet, trained alone in float32 with the rows of
    # its batch in another order, has weights that are 3e-6 to 3e-3 off, on some CPUs more than on others.
    double: bool = False
    strides: bool = False  # random states, with strides
    in_parts: bool = False  # a random plan with statistics of BatchNorm in parts
    order: str = ONE_F_ONE_B  # of the tasks of stages; "own" is that of a search
    grouped: bool = False  # planned for links over which all gathers over shares are grouped

    @property
    def ranks(self) -> int:
        """Return how many ranks the plan is for."""
        meshes = self.parts or (self.mesh,) * self.stages
        return sum(Mesh.parse(mesh).size for mesh in meshes)


def four_levels(module: str) -> int | None:
    """Return a UNet's stages such that skips pass over stages: 0 → 3."""
    if module.startswith(("model.grow", "model.up")):
        return 2 + int(module.split(".")[2])
    if module.startswith("model.down"):
        return min(1, int(module.split(".")[2]))
    return 3 if module.startswith("model.head") else None


def before_the_head(module: str) -> int | None:
    """Return BERT's stages, of which both read the table of tokens."""
    head = ("model.transform", "model.act", "model.norm")
    return 0 if module.startswith("model.encoder") else 1 if module.startswith(head) else None


UNEVEN = Case("uneven", "mlp", "4", "data parallel", uneven=6)
UNEVEN_2D = Case("uneven_2d", "mlp", "2x2", uneven=7)
ONE_BLOCK = (("depths", (0, 0, 1)),)  # of TransGAN, behind both kinds of upsampling and in windows
CLIPPED = (("layers", 1), ("optimizer", "clipped_sgd"))
ADAMW = (("optimizer", "adamw"),)
BASIC = (("blocks", (1, 1)), ("basic", True))
CASES = (
    Case("gpt", "gpt", "2x2", sizes=(("layers", 1),)),
    Case("alexnet_checked", "alexnet", "2x2", checked=True),
    Case("unet", "unet", "2x2", "ZeRO 2", sizes=(("depth", 1),)),
    Case("resnet", "resnet50", "2x2", "Megatron", sizes=(("blocks", (1,)),), double=True),
    Case(
        "resnet_in_parts", "resnet50", "2x2", sizes=(("blocks", (1,)),), double=True, in_parts=True
    ),
    UNEVEN,
    UNEVEN_2D,
    Case("summed", "mlp", "2x2", micro_batches=3, sizes=ADAMW),
    Case("idle", "mlp", "2", "data parallel", 2, 2, lambda m: int(not m)),
    Case("tied_2x2", "bert", "2", "ZeRO 2", 2, 3, before_the_head),
    Case("sums", "sums", "2x2", "coordinate"),
    Case("reused", "reused", "2x2", "Megatron"),
    Case(
        "constants_2x2",
        "constants",
        "2",
        "data parallel",
        2,
        4,
        functional_models.halves,
        order=GPIPE,
    ),
    Case("unet_4x1", "unet", "1", "coordinate", 4, 5, four_levels, recomputed=(0,), order="own"),
    # on stages of unlike shape
    Case("mlp_2_1_1", "mlp", "", "", 3, 4, parts=("2", "1", "1"), checked=True),
    Case("transgan_1_2_1", "transgan", "", "", 3, 3, sizes=ONE_BLOCK, parts=("1", "2", "1")),
    Case("mlp_3d_checked", "mlp", "2x2x1", checked=True),  # an axis of one device is an axis, too
    # with local tensors: baselines, or random states
    Case("gpt_by_3_1_masked", "gpt", "2:3/1", "ZeRO 2", sizes=(("layers", 1), ("dropout", 0.1))),
    Case("gpt_by_2_1_1_clipped", "gpt", "3:2/1/1", "Megatron", sizes=CLIPPED),
    Case("vgg13_by_3_1_random", "vgg13", "2:3/1", ""),
    Case("resnet_by_3_1_random", "resnet50", "2:3/1", "", sizes=BASIC, double=True),
    Case("gpt_by_3_1_then_1", "gpt", "", "", 2, 4, parts=("2:3/1", "1"), order=GPIPE),
    Case("mlp_by_3_1_x_2_random", "mlp", "2:3/1x2", "", micro_batches=3, sizes=ADAMW),
    Case("mlp_by_2_1_1_grouped", "mlp", "3:2/1/1", "", grouped=True),
    Case(
        "gpt_strided", "gpt", "2x2", "", sizes=(("layers", 1), ("three_first", True)), strides=True
    ),
)
Seen = Callable[[Case], list[dict[str, Any]]]


def prepare(case: Case, folder: Path) -> dict[str, Any]:
    """Write script, weights and data of a case and train it in this process; return the ranks' job."""
    import oneflow as flow

    from experiments.models.training import OPTIMIZERS, seed_weights

    sizes = dict(case.sizes)
    graph, inputs = functional_models.build(case.model, **sizes)
    if case.double:
        graph.model.to(flow.nn.Module).to(flow.float64)
        inputs = tuple(t.to(flow.float64) if t.is_floating_point() else t for t in inputs)
    mesh = case.mesh or "1"  # with parts only the program of this plan is taken
    if ":" in mesh or case.strides:
        plan = by_shares(autoddl.capture(graph, *inputs), case)
        assert ("grouped=True" in generate(plan)) == case.grouped
    else:
        plan = autoddl.optimize(
            graph, *inputs, mesh=mesh, search=case.search if case.mesh else "data parallel"
        )
    if case.uneven is not None:  # the same states, whose shards are now of different sizes
        graph, inputs = functional_models.build(case.model, **sizes, batch=case.uneven)
        plan = at_shapes(plan, autoddl.capture(graph, *inputs))
    if case.in_parts:
        plan = random_plan(synchronised(plan.program), mesh)
        assert "whole_batch_norm(" in generate(plan)
    if case.parts:  # of the first plan only the program is taken
        plan = parted(plan.program, case.parts, case.micro_batches)
    elif case.stages * case.micro_batches > 1:
        plan = in_stages(plan, case.stages, case.micro_batches, case.stage_of)
        plan = recomputing(plan, case.recomputed)
    if case.stages > 1:
        plan = ordered(plan, case.order)
        (folder / f"{case.name}.schedule").write_text(json.dumps(plan.schedule()))
    text = generate(plan, checked=case.checked)
    assert not case.strides or text.count(", [(2, ") > 1  # on both ways between strides and others
    (folder / f"{case.name}.py").write_text(text)
    model = graph.model.to(flow.nn.Module)
    seed_weights(model, 0)
    flow.save(model.state_dict(), str(folder / f"{case.name}.weights"))
    rng = np.random.default_rng(1)
    arrays = [
        np.concatenate([rng.permuted(t.numpy(), axis=None) for _ in range(case.micro_batches)])
        for t in inputs
    ]
    assert plan.program is not None
    names = [item.name for item in inputs_of(plan.program)]
    data = folder / f"{case.name}.npz"
    np.savez(data, **dict(zip(names, arrays, strict=True)))
    optimizer = OPTIMIZERS[sizes.get("optimizer", "sgd")](model.parameters())
    losses = trained_alone(graph, model, optimizer, arrays, case.micro_batches)
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    np.savez(folder / f"{case.name}.expected.npz", losses=losses, **state)
    return {
        "name": case.name, "script": str(folder / f"{case.name}.py"), "data": str(data),
        "weights": str(folder / f"{case.name}.weights"), "steps": STEPS,
        "learning_rate": RATES[sizes.get("optimizer", "sgd")],
    }  # fmt: skip


def ordered(plan: Plan, order: str) -> Plan:
    """Return a plan by hand whose stages do their tasks in an order: "own" is that of a search."""
    if order == ONE_F_ONE_B:
        return plan
    ends = {(a, b) for _, a, b in plan.links}
    works = [
        StageWork(((COMPUTE, 1.0 + stage),), ((COMPUTE, 3.0),)) for stage in range(len(plan.parts))
    ]
    step = PipelineStep(
        tuple(works), plan.micro_batches, tuple(TransferWork(*end, 0.2) for end in ends),
        schedule=GPIPE, rendezvous=True,
    )  # fmt: skip
    if order == GPIPE:
        return Plan.of(plan.in_own_order(step_tasks(step)))
    searched = searched_order(step, [3] * len(plan.parts))
    return Plan.of(replace(plan, orders=searched.orders))


def random_plan(program: Program, mesh: str) -> Plan:
    """Return a plan of random states."""
    problem = build(program, Mesh.parse(mesh), profiles.load(None))
    return Plan.of(make_plan(problem, problem.result("random", random_assignment(problem, 2))))


def by_shares(program: Program, case: Case) -> Plan:
    """Return the plan of a baseline over shares, or one of random states."""
    profile = profiles.load(None)
    if case.grouped:
        free = tuple(Link("broadcast", level, 2, 0.0, 0.0) for level in profile.levels)
        profile = structs.replace(profile, links=(*profile.links, *free))
    if case.search:
        return autoddl.optimize(
            program, mesh=case.mesh, search=case.search, engine="script", profile=profile
        )
    parted = with_whole_masks(synchronised(program), alike=SCRIPTS.masks_alike)
    problem = build(parted, Mesh.parse(case.mesh), profile, engine=SCRIPTS, strides=case.strides)
    return Plan.of(make_plan(problem, problem.result("by hand", random_assignment(problem, 2))))


def at_shapes(plan: Plan, program: Any) -> Plan:
    """Return a plan's states for the same graph with other shapes."""
    return replace(plan, program=program)


def trained_alone(
    graph: Any, model: Any, optimizer: Any, arrays: list[Any], micro_batches: int
) -> list[float]:
    """Return the losses of one process that adds up the gradients of micro-batches."""
    import oneflow as flow

    flow.manual_seed(0)  # as on ranks
    for module in model.modules():
        if isinstance(module, flow.nn.Dropout):
            module.generator = None  # that of the seed, not one of its own
    losses = []
    for _ in range(STEPS):
        total = 0.0
        for parts in zip(*(np.split(a, micro_batches) for a in arrays), strict=True):
            *xs, y = map(flow.tensor, parts)
            loss = graph.loss(model(*xs), y) if hasattr(graph, "loss") else model(*xs, y)
            (loss / micro_batches).backward()
            total += float(loss.numpy()) / micro_batches
        if any("clip_grad_max_norm" in group for group in optimizer.param_groups):
            optimizer.clip_grad()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated")


@pytest.fixture(scope="module")
def seen(on_ranks: RankGroups, folder: Path) -> Seen:
    """Return what gives what each rank saw of a case."""

    @cache
    def seen_of(case: Case) -> list[dict[str, Any]]:
        on_ranks(SCRIPT, folder, json.dumps(prepare(case, folder)), ranks=case.ranks)
        files = [folder / f"{case.name}.rank{rank}.json" for rank in range(case.ranks)]
        return [json.loads(file.read_text()) for file in files]

    return seen_of


def check(case: Case, ranks: list[dict[str, Any]], folder: Path) -> None:
    """Hold losses, weights, states and the order of stages against what they have to be."""
    expected = np.load(folder / f"{case.name}.expected.npz")
    weights = read_weights(folder / f"{case.name}.trained")
    assert set(weights) == set(expected.files) - {"losses"}
    for name, value in weights.items():
        if not name.endswith("num_batches_tracked"):  # no op of a graph counts those
            # the engine's BatchNorm rounds epsilon and momentum to float32
            rounded = case.in_parts or ":" in case.mesh
            atol = 1e-10 if case.double and not rounded else 1e-7 if case.double else 1e-5
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=atol)
    for rank in ranks:
        if rank["stage"] == case.stages - 1:
            assert rank["losses"] == pytest.approx(list(expected["losses"]), abs=1e-4)
        else:
            assert rank["losses"] == []
        assert rank["unplanned"] == ([] if case.checked else None)
    if case.stages > 1:  # every rank has done exactly what the schedule says of it
        schedule = json.loads((folder / f"{case.name}.schedule").read_text())
        assert schedule["order"] == case.order
        assert {n: rank["done"] for n, rank in enumerate(ranks)} == {
            row["rank"]: row["tasks"].split() for row in schedule["ranks"]
        }


def read_weights(path: Path) -> dict[str, Any]:
    import oneflow as flow

    return {name: tensor.numpy() for name, tensor in flow.load(str(path)).items()}


SMOKE = ("gpt", "tied_2x2")


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.smoke if c.name in SMOKE else (), id=c.name) for c in CASES],
)
def test_ranks_train_as_one_process(case: Case, seen: Seen, folder: Path) -> None:
    check(case, seen(case), folder)


@pytest.mark.parametrize(
    ("mesh", "every", "tried"), [("2:3/1", 1, 12), ("2:3/1x2", 1, 86), ("2x2", 3, 94)]
)
def test_local_tensors_and_their_gradients_move(
    mesh: str, every: int, tried: int, on_ranks: RankGroups, tmp_path: Path
) -> None:
    """Between states that one boxing joins, with strides on even meshes; beside whole arrays."""
    found = tmp_path / "moves.json"
    moves = SCRIPT.with_name("local_moves.py")
    on_ranks(moves, found, mesh, str(every), ranks=Mesh.parse(mesh).size)
    assert json.loads(found.read_text()) == {"tried": tried, "wrong": []}


def test_shards_of_a_batch_that_does_not_divide_are_uneven(seen: Seen) -> None:
    rows = [rank["parts"][0][0] for rank in seen(UNEVEN)]  # of x, cut along the batch of 6
    assert rows == [2, 2, 1, 1]
    assert sorted({rank["parts"][0][0] for rank in seen(UNEVEN_2D)}) == [3, 4]


def test_a_script_runs_by_itself(folder: Path) -> None:
    """Start a pipeline's script as its header says, where autoddl can't be imported."""
    case = Case("alone", "reused", "1", "coordinate", 2, 4, functional_models.halves)
    job = prepare(case, folder)
    command = [sys.executable, "-m", "autoddl", "run", "--nproc-per-node", "2"]
    arguments = ["--weights", job["weights"], "--data", job["data"], "--steps", str(STEPS)]
    arguments += ["--learning-rate", str(RATES["sgd"]), "--save", str(folder / "alone.trained")]
    source = Path(job["script"]).read_text()
    assert "autoddl" not in source.partition('"""\n\nimport')[2]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(
        [*command, job["script"], *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    expected = np.load(folder / "alone.expected.npz")
    for name, value in read_weights(folder / "alone.trained").items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5)
