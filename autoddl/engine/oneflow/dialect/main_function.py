"""The command line of a script, and the loop."""

from __future__ import annotations

from autoddl.codegen.dialect import ScriptContent

DEFAULT_LEARNING_RATES = {  # where the program does not tell it
    "SGD": 0.1, "Adam": 1e-3, "AdamW": 1e-3, "RMSprop": 1e-3, "Adadelta": 1.0,
}  # fmt: skip

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
        if flow.env.get_rank() == np.ravel(RANKS[STAGE])[0]:
            logging.info("step %d: loss %.6f", step, loss)"""


def main_function(content: ScriptContent) -> str:
    """Return main() and what calls it."""
    optimizer, staged = content.optimizer, content.stages is not None
    rate = content.learning_rate
    if rate is None and optimizer is not None:
        rate = optimizer.learning_rate
    if rate is None:
        rate = DEFAULT_LEARNING_RATES[optimizer.kind if optimizer else "SGD"]
    random = any(op.type == "dropout" for op in content.plan.program.ops)
    level = "logging.INFO" + ("" if staged else " if flow.env.get_rank() == 0 else logging.ERROR")
    loop = _STAGED if staged else _ACCUMULATED if content.plan.micro_batches > 1 else _WHOLE
    scheduled = optimizer is not None and bool(optimizer.schedule)
    goes_on = ["schedule.step()"]
    if content.has_idle:
        goes_on = ["if schedule is not None:", "    schedule.step()"]
    lines = [
        "parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])",
        *_options(float(rate), random),
        "args = parser.parse_args()",
        f"logging.basicConfig(level={level})",
        *(
            ["flow.manual_seed(args.seed)  # on all ranks: copies of a tensor get the same mask"]
            * random
        ),
        "params = load_parameters(args.weights)",
        "optimizer = make_optimizer(params, args.learning_rate)",
        *(["schedule = make_schedule(optimizer)"] * scheduled),
        *loop.splitlines(),
        *([f"    {line}" for line in goes_on] * scheduled),
        "if args.save:",
        f"    save_checkpoint(args.save, params{', flow.load(args.weights)' * staged})",
    ]
    body = "\n".join(f"    {line}" for line in lines)
    return f'def main():\n{body}\n\n\nif __name__ == "__main__":\n    main()'


def _options(rate: float, random: bool) -> list[str]:
    """Return the options of the command line."""
    options = [
        '"--weights", required=True, help="state dict of the single-device model"',
        '"--data", help="an .npz file with the arrays of INPUTS; else random ones"',
        '"--steps", type=int, default=10',
        f'"--learning-rate", type=float, default={rate!r}',
    ]
    if random:
        options.append('"--seed", type=int, default=0, help="of the dropout masks"')
    options.append('"--save", help="where to write the trained state dict"')
    return [f"parser.add_argument({option})" for option in options]
