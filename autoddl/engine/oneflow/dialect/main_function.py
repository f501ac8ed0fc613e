"""The command line of a script: options that a captured graph does not tell, and the loop."""

from __future__ import annotations

from collections.abc import Sequence

from autoddl.codegen.dialect import ScriptContent

DEFAULT_LEARNING_RATES = {"SGD": 0.1, "Adam": 1e-3, "AdamW": 1e-3}

_WHOLE = """\
for step, inputs in zip(range(args.steps), batches(args.data), strict=False):
    loss = train_step(params, optimizer, *inputs)
    logging.info("step %d: loss %.6f", step, as_whole(loss))"""
_ACCUMULATED = """\
stream = batches(args.data)
for step in range(args.steps):
    micro_batches = itertools.islice(stream, MICRO_BATCHES)
    loss = train_step(params, optimizer, micro_batches)
    logging.info("step %d: loss %.6f", step, as_whole(loss))"""
_STAGED = """\
for step, micro_batches in zip(range(args.steps), batches(args.data), strict=False):
    loss = train_step(params, optimizer, micro_batches)
    if loss is not None:
        loss = as_whole(loss)
        if flow.env.get_rank() == STAGE * RANKS_PER_STAGE:
            logging.info("step %d: loss %.6f", step, loss)"""


def main_function(content: ScriptContent) -> str:
    """Return main() and what calls it."""
    optimizer, staged = content.optimizer, content.stages is not None
    own = DEFAULT_LEARNING_RATES[optimizer.kind if optimizer else "SGD"]
    unknown = optimizer.unknown if optimizer else ()
    random = any(op.type == "dropout" for op in content.plan.program.ops)
    level = "logging.INFO" + ("" if staged else " if flow.env.get_rank() == 0 else logging.ERROR")
    loop = _STAGED if staged else _ACCUMULATED if content.plan.micro_batches > 1 else _WHOLE
    arguments = "".join(f", args.{name}" for name in unknown)
    lines = [
        "parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])",
        *_options(float(content.learning_rate or own), unknown, random),
        "args = parser.parse_args()",
        f"logging.basicConfig(level={level})",
        *(
            ["flow.manual_seed(args.seed)  # on all ranks: copies of a tensor get the same mask"]
            * random
        ),
        "params = load_parameters(args.weights)",
        f"optimizer = make_optimizer(params, args.learning_rate{arguments})",
        *loop.splitlines(),
        "if args.save:",
        f"    save_checkpoint(args.save, params{', flow.load(args.weights)' * staged})",
    ]
    body = "\n".join(f"    {line}" for line in lines)
    return f'def main():\n{body}\n\n\nif __name__ == "__main__":\n    main()'


def _options(rate: float, unknown: Sequence[str], random: bool) -> list[str]:
    """Return the options of the command line."""
    options = [
        '"--weights", required=True, help="state dict of the single-device model"',
        '"--data", help="an .npz file with the arrays of INPUTS; else random ones"',
        '"--steps", type=int, default=10',
        f'"--learning-rate", type=float, default={rate!r}',
    ]
    for name in unknown:
        option = f'"--{name.replace("_", "-")}"'
        options.append(f'{option}, type=float, required=True, help="as planned"')
    if random:
        options.append('"--seed", type=int, default=0, help="of the dropout masks"')
    options.append('"--save", help="where to write the trained state dict"')
    return [f"parser.add_argument({option})" for option in options]
