"""Scripts over shares or with strides: local tensors, and collectives, each with its dual backwards.

Global tensors cut evenly, and each dim into one piece for each device. So every rank holds its shards as
local tensors, ops are written with the sizes that this rank has, and functions of `runtime.local_model`
say what goes between ranks. Autograd knows nothing of other ranks: the gradient of what all places of an
axis read whole, while they compute different parts, is a summand on each, added up where it is read.

Example: y (S0) = matmul(x (S0), w (B)) is `flow.matmul(x, summed_back(w, 0))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoddl.codegen.dialect import Axes, Dialect, ScriptContent
from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import Expr, call, literal, quoted
from autoddl.codegen.templates import ScriptOp, Template
from autoddl.engine.oneflow.dialect import layer_writers as layer
from autoddl.engine.oneflow.dialect import op_writers as w
from autoddl.engine.oneflow.dialect import script_tables
from autoddl.engine.oneflow.dialect.op_templates import TEMPLATES
from autoddl.engine.oneflow.dialect.optimizer_text import optimizer_text, schedule_text
from autoddl.engine.oneflow.dialect.runtime_source import called, functions_of
from autoddl.engine.oneflow.dialect.script_dialect import check_states
from autoddl.engine.oneflow.dialect.script_frame import header, main_function
from autoddl.errors import AutoDDLError
from autoddl.plan.value import PlanValue
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.shares import Shares
from autoddl.sbp.state import OWN, B, NdSbp, Sbp

_FUNCTIONS = (
    "groups", "own", "lengths", "padded", "collective", "summed", "gathered", "sliced", "scattered",
    "announced", "exchanged", "stretched", "first_only", "dealt", "collected", "along", "dual", "moved",
    "in_turn", "boxed", "summed_back", "first_turn", "as_local", "as_whole",
)  # fmt: skip
_CALLED = {
    "part": "module_parameters", "dropped": "local_layers", "whole_batch_norm": "local_layers",
    "clip_gradients": "local_model",
}  # fmt: skip
"""The functions that only some scripts call, and their modules."""
_TABLES = {"GROUPS", "LOSS", "PLACE", "SHARES", "TURN", "UNITS"}
_NAMES = frozenset({"arriving", "backward", *_TABLES, *_FUNCTIONS, *_CALLED})

# Ops that look at where their shard begins, by the operand and dim (from the end where negative) that
# therefore stays whole.
_BY_PLACE: Mapping[str, tuple[tuple[str, int], ...]] = {
    "embedding": (("weight_0", 0),),
    "nll": (("input_0", -1),),
    "sparse_softmax_cross_entropy": (("prediction_0", -1),),
    "one_hot": (("out_0", -1),),
    "tril": (("in_0", -1), ("in_0", -2)),
    "triu": (("in_0", -1), ("in_0", -2)),
}
_ALONG_AXIS = {"gather": ("in_0", "axis"), "dim_gather": ("input_0", "dim")}
_DRAWN = ("uniform", "normal", "randperm")


def sized(name: str, operand: str, attr: str) -> Callable[[ScriptOp], Expr]:
    """Write an op that is given the sizes of its result, of which a rank has its own."""

    def write(op: ScriptOp) -> Expr:
        sizes = _own(op.op.attr[attr], op.states[op.output])
        if not sizes:
            return call("flow.reshape", op.args[operand], ())
        return call(f"{op.args[operand].atom}.{name}", *sizes)

    return write


def _own(sizes: tuple[int, ...], state: NdSbp) -> list[object]:
    """Return sizes of a logical shape as a rank has them: `own(48, 0)` of what axis 0 cuts."""
    cutting = {dim: state.cutting(dim) for dim in range(len(sizes))}
    return [
        call("own", size, *cutting[dim]) if cutting[dim] else size for dim, size in enumerate(sizes)
    ]


def _bound(op: ScriptOp, operand: str) -> Callable[[int, int], Expr]:
    """Write where a piece of a dim begins or ends; each rank has its part of what is cut in turns."""

    def write(place: int, dim: int) -> Expr:
        axes = op.states[operand].cutting(dim)
        return call("own", place, *axes) if axes else Expr(literal(place))

    return write


def made(whole: w.Write) -> w.Write:
    """Write an op without inputs: all make it whole, and keep what is theirs."""

    def write(op: ScriptOp) -> Expr:
        state = op.states[op.output]
        if all(entry == B for entry in state):
            return whole(op)
        before = Expr(state_text(NdSbp(B for _ in state)))
        return call("moved", whole(op), before, Expr(state_text(state)))

    return write


def dropped(op: ScriptOp) -> Expr:
    """Write a dropout, of whose mask, which all ranks draw whole and alike, each takes its part."""
    x, rate, state = op.args["in_0"], op.floats("rate"), op.states["in_0"]
    if not any(entry.is_split for entry in state):
        return call("F.dropout", x, p=rate)
    return call("dropped", x, rate, tuple(op.shape["in_0"]), Expr(state_text(state)))


def normalised(op: ScriptOp) -> Expr:
    """Write a BatchNorm, with statistics of all samples where axes cut these."""
    return layer.batch_norm(op, *op.states["x_0"].cutting(0))


def counted(op: ScriptOp) -> Expr:
    """Write the losses of targets, or which of them count."""
    return layer.nll(op, boxed=lambda found, before, after: _boxed(found, before, after))


def state_text(state: NdSbp) -> str:
    """Return a state as a list of the dims that axes cut, "[0, B]", with strides "[(0, 64), B]"."""
    return f"[{', '.join(map(_entry, state.executed))}]"


def _entry(sbp: Sbp) -> str:
    if not sbp.is_split:
        return sbp.kind
    return str(sbp.dim) if sbp.stride is None else f"({sbp.dim}, {sbp.stride})"


def _boxed(value: Expr, before: NdSbp, after: NdSbp) -> Expr:
    return call("boxed", value, Expr(state_text(before)), Expr(state_text(after)))


class LocalDialect:
    """See Dialect."""

    templates: Mapping[str, Template] = {
        **TEMPLATES,
        "reshape": Template(sized("reshape", "in_0", "shape"), "", inline=True),
        "expand": Template(sized("expand", "in_0", "expand_shape"), "", inline=True),
        "scalar_mul": Template(w.scaled, "", inline=True),  # a mean of means is none
        "slice": Template(lambda op: w.sliced(op, _bound(op, "x_0")), "piece"),
        "narrow": Template(lambda op: w.narrowed(op, _bound(op, "in_0")), "piece"),
        "nll": Template(counted, "losses"),
        "arange": Template(made(w.made_whole("arange")), "positions"),
        "constant": Template(made(w.made_whole("full")), "constant"),
        **{name: Template(made(w.drawn_whole), "drawn") for name in _DRAWN},
        "dropout": Template(dropped, ""),
        "normalization": Template(normalised, ""),
    }
    globals: frozenset[str] = script_tables.GLOBALS | _NAMES

    def check(self, plan: PlanValue) -> None:
        """Raise AutoDDLError for what local tensors can't be written of."""
        check_states(plan)
        if plan.pipelined and any(part.layout.has_strides for part in plan.parts):
            raise AutoDDLError(
                "codegen: cuts with strides are not written in stages and micro-batches; pin no strides"
            )
        for op in plan.program.ops:
            if op.phase == "forward":
                _check_op(op, plan.program.shapes(op), plan.signatures[op.name])

    def placement(self, *, staged: bool) -> Expr:
        return Expr("DEVICE")

    def boxed(
        self, value: Expr, before: NdSbp, after: NdSbp, *, trained: bool, late: Axes = (),
        grouped: bool = False,
    ) -> Expr:  # fmt: skip
        states = Expr(state_text(before)), Expr(state_text(after))
        said: dict[str, object] = {"late": tuple(late)} if trained and late else {}
        said |= {"grouped": True} if grouped else {}
        return call("boxed" if trained else "moved", value, *states, **said)

    def read(self, value: Expr, axes: Axes) -> Expr:
        if not axes:
            return value
        return Expr(call("summed_back", value, *axes).text, args={"": value})

    def pinned(self, value: Expr, state: NdSbp) -> Expr:
        return value

    def script(self, content: ScriptContent) -> str:
        """Return the text of a whole script."""
        optimizer, staged = content.optimizer, content.stages is not None
        model = "local_stages" if staged else "local_model"
        updating = optimizer_text(
            optimizer, content.top, stages=staged, idle=content.has_idle,
            clip="clip_gradients(params, optimizer)",
        )  # fmt: skip
        parts = [
            _tables(content),
            functions_of("local_model", *_FUNCTIONS),
            f"GROUPS = groups(RANKS{'[STAGE]' * staged})\n"
            "TURN = []  # what the last function with a gradient of its own handed on",
            *called((*content.functions, updating), _CALLED),
            *content.functions,
            updating,
            *schedule_text(optimizer, idle=content.has_idle),
            *_step(content),
            functions_of(model, "load_parameters", "save_checkpoint", "batches"),
            main_function(content),
        ]
        body = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
        return header(content.plan, body, content.top) + body


def _step(content: ScriptContent) -> list[str]:
    """Return what runs a step: all at once, micro-batch by micro-batch, or in stages."""
    if content.stages is None:
        module = "local_accumulation" if content.plan.micro_batches > 1 else "local_model"
        return [functions_of("local_model", "backward"), functions_of(module, "train_step")]
    return [
        *script_tables.ordering(content.plan),
        functions_of("autoddl.codegen.transfer_boxes", "transfer_boxes"),
        functions_of("local_stages", "boxes"),
        functions_of("staged_model", "inside", "routes"),
        script_tables.orders(content.stages),
        functions_of("local_stages", "arriving"),
        functions_of("staged_model", "move"),
        functions_of("local_stages", "exchange", "compute", "run_forward", "run_backward"),
        functions_of("staged_model", "noted", "train_step"),
    ]


def _tables(content: ScriptContent) -> str:
    lines = ['B, P = "B", "P"  # the whole tensor; a summand of it']
    if content.stages is None:
        lines += _whole(content)
    else:
        lines += script_tables.staged(content, content.stages, state_text, _places(content))
    return "\n".join(lines)


def _whole(content: ScriptContent) -> list[str]:
    plan, mesh = content.plan, content.plan.mesh
    return [
        f"DEVICE = {quoted(plan.device)}",
        f"RANKS = {script_tables.ranks(plan.parts[0])}  # mesh {layout.prose(mesh.describe())}",
        f"SHARES = {literal(_shares(mesh))}  # of each place of an axis, in units",
        _PLACE.format(ranks="RANKS"),
        f"LOSS = {_loss(content)}  # the state of the loss",
        *script_tables.micro_batches(plan),
        *script_tables.variables(
            content, state_text,
            "Parameters by their names in the model: state, # shape.",
            "What is not trained: buffers and frozen parameters.",
        ),
        *script_tables.inputs(
            content, state_text, "Inputs: shape, dtype, state, and what whole numbers are below."
        ),
    ]  # fmt: skip


def _places(content: ScriptContent) -> list[str]:
    """Return the lines that say what this rank has of what its stage cuts."""
    units = [_shares(part.mesh) for part in content.plan.parts]
    none_again = not any(part.recomputed for part in content.plan.parts)
    return [
        script_tables.STAGE,
        *(["RECOMPUTED = []"] if none_again else []),
        f"UNITS = {literal(units)}",
        "SHARES = UNITS[STAGE]  # of each place of an axis, in units",
        _PLACE.format(ranks="RANKS[STAGE]"),
        f"LOSS = {_loss(content)}  # the state of the loss",
    ]


_PLACE = "PLACE = tuple(int(x[0]) for x in np.nonzero(np.array({ranks}) == flow.env.get_rank()))"


def _loss(content: ScriptContent) -> str:
    """Return the state of the loss; of a stage that has it, with stages."""
    if content.stages is None:
        state = content.loss_state
    else:
        state = content.stages.loss_state
    return state_text(state or NdSbp(B for _ in content.plan.mesh.axes))


def _shares(mesh: Mesh) -> list[tuple[int, ...]]:
    return [
        cut.units if isinstance(cut, Shares) else (1,) * size
        for cut, size in zip(mesh.cuts, mesh.shape, strict=True)
    ]


def _check_op(op: Op, shapes: Mapping[str, tuple[int, ...]], signature: NdSignature) -> None:
    """Raise AutoDDLError for an op that depends on where its shard begins, or on its rows alone."""
    if any(OWN in state for state in signature.values()):
        raise AutoDDLError(
            f"codegen: op {op.name} ({op.type}) has statistics of each device's own samples, of which "
            "shares give devices unlike numbers; plan without allow_local_batchnorm, or with shares=False"
        )
    whole = list(_BY_PLACE.get(op.type, ()))
    if op.type in _ALONG_AXIS:
        operand, attr = _ALONG_AXIS[op.type]
        whole.append((operand, op.attr[attr]))
    for operand, dim in whole:
        if operand in signature and signature[operand].cutting(dim % len(shapes[operand])):
            raise AutoDDLError(
                f"codegen: {operand} of op {op.name} ({op.type}) is in state {signature[operand]}; over "
                f"shares its dim {dim} stays whole; plan with shares=False"
            )


LOCAL: Dialect = LocalDialect()
