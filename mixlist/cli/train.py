"""``mixlist train``: may a network be trained in mixed precision, under these lists and with this loss scaling?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.data import PROVIDER
from mixlist.cli.limits import Limit, exception_rate
from mixlist.cli.options import FILE, POLICY_OPTIONS, one_standard_input, options, policy_from
from mixlist.cli.outputs import check_output, write_report
from mixlist.errors import UsageError

if TYPE_CHECKING:
    from mixlist.training.job import Progress
    from mixlist.training.optimizers import Settings

SCALERS = ("fixed", "npu", "npu-tf2", "mindspore", "mindspore-fixed", "torch", "nnabla", "none")
_RATE = Limit(0, 1)
_POSITIVE = click.IntRange(min=1)


def _number(option: str, text: str, default: float, **more: Any) -> Any:
    return click.option(option, metavar="X", type=float, default=default, show_default=True, help=text, **more)


DATA = (
    click.option(
        "--data",
        metavar="FILE",
        type=FILE,
        required=True,
        help="A .npz file of the batch inputs by name, samples along the first axis.",
    ),
    click.option(
        "--eval-data",
        metavar="FILE",
        type=FILE,
        help="Samples for the metric, in the same form.  [default: those of --data]",
    ),
    click.option("--batch-size", metavar="N", type=_POSITIVE, default=32, show_default=True),
    click.option("--steps", metavar="N", type=_POSITIVE, help="Batches of each training."),
    click.option("--epochs", metavar="N", type=_POSITIVE, help="Or its length in epochs.  [default: 10]"),
    click.option(
        "--init",
        metavar="FILE",
        type=FILE,
        help="A .npz file of first values by parameter; others are drawn from the seed.",
    ),
    click.option(
        "--runs", metavar="N", type=_POSITIVE, default=3, show_default=True, help="Seeds; each is trained twice."
    ),
    click.option(
        "--seed", metavar="S", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed."
    ),
    click.option(
        "--metric",
        metavar="OUTPUT",
        help="The output whose mean is judged.  [default: accuracy of the output logits against the input y, or loss]",
    ),
)
OPTIMIZER = (
    click.option(
        "--optimizer",
        type=click.Choice(["sgd", "momentum", "adam", "adamw"]),
        default="adam",
        show_default=True,
        help="As PyTorch's of the same name (momentum: SGD with it).",
    ),
    _number("--lr", "The learning rate.", 0.001),
    _number("--momentum", "Of the optimizer momentum.", 0.9),
    click.option("--nesterov", is_flag=True, help="Nesterov's momentum."),
    _number("--beta1", "Of adam and adamw.", 0.9),
    _number("--beta2", "Of adam and adamw.", 0.999),
    _number("--eps", "Of adam and adamw.", 1e-8),
    _number("--weight-decay", "Added to the gradient; adamw shrinks the parameters by it.", 0.0),
    click.option(
        "--lr-schedule",
        type=click.Choice(["constant", "linear", "cosine", "step"]),
        default="constant",
        show_default=True,
        help="The learning rate after the warm-up: constant, to zero at the last step (linear, cosine), or in steps.",
    ),
    click.option(
        "--warmup-steps",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Steps in which the learning rate grows to --lr.",
    ),
    _number("--lr-decay", "Factor of the schedule step.", 0.1),
    click.option(
        "--lr-decay-steps",
        metavar="N",
        type=_POSITIVE,
        default=1000,
        show_default=True,
        help="After how many steps it comes.",
    ),
)
SCALING = (
    click.option(
        "--loss-scaler",
        type=click.Choice(SCALERS),
        default="torch",
        show_default=True,
        help="Whose rule scales the loss: torch is dynamic and starts at 65536.",
    ),
    click.option("--loss-scale", metavar="S", type=float, help="The scaler's first scale, or its fixed one."),
    click.option(
        "--scaler-arg",
        "scaler_args",
        metavar="NAME=VALUE",
        multiple=True,
        help="A parameter of the scaler by its framework's name, such as growth_interval=500. Can be given repeatedly.",
    ),
    click.option(
        "--advance-on-skip",
        is_flag=True,
        help="A skipped step counts: the learning rate and Adam's correction go on, as in Keras.",
    ),
)
JUDGING = (
    click.option("--large-batch", is_flag=True, help="The exception rate for a large global batch: 0.1 %."),
    click.option(
        "--max-exception-rate",
        metavar="R",
        type=_RATE,
        help="Share of steps with an exception from which the verdict is fail.  [default: 0.005]",
    ),
    click.option(
        "--tolerance",
        metavar="X",
        type=Limit(0, None),
        default=0.005,
        show_default=True,
        help="How much worse than in float32 the metric may be.",
    ),
    click.option(
        "--trace-overflow", is_flag=True, help="Find the nodes that overflow first, and the lists that keep them high."
    ),
    click.option("--tune-scale", is_flag=True, help="Search the scaler's first scale and its growth."),
)
OUTPUT = (
    click.option(
        "--resume",
        metavar="STATE",
        type=FILE,
        help="Keep the state in this file; a training that was killed goes on from it to the same numbers.",
    ),
    click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
    click.option("--html", metavar="FILE", type=FILE, help="Write the report as one self-contained page, too."),
)


@click.command("train", short_help="Find out whether a network may be trained in mixed precision.")
@click.argument("step", type=FILE)
@options(*DATA, *OPTIMIZER, *POLICY_OPTIONS, PROVIDER, *SCALING, *JUDGING, *OUTPUT)
def command(
    step: str,
    data: str,
    eval_data: str | None,
    batch_size: int,
    steps: int | None,
    epochs: int | None,
    init: str | None,
    runs: int,
    seed: int,
    metric: str | None,
    provider: str,
    loss_scaler: str,
    loss_scale: float | None,
    scaler_args: tuple[str, ...],
    advance_on_skip: bool,
    large_batch: bool,
    max_exception_rate: float | None,
    tolerance: float,
    trace_overflow: bool,
    tune_scale: bool,
    resume: str | None,
    form: str,
    html: str | None,
    **given: Any,
) -> int:
    """Find out whether a network may be trained in mixed precision. Nothing is written but the report and the state.

    STEP is a training-step graph: an ONNX model whose inputs are the parameters, a batch and 'loss_scale', and whose
    outputs are 'loss' and 'grad.PARAMETER' for each parameter. mixlist.training.export_step makes one from a PyTorch
    module.

    For every seed the same batches train it twice: in float32, and as the lists say, with float32 master weights and
    the loss scaled. A step whose gradients are not all finite is an exception; its update is skipped. The verdict is
    pass where exceptions stay below their limit, the metric is as good as in float32 and constant over at least three
    runs, and no training diverges. Exit status 0: pass, 1: fail or interrupted. Ctrl-C gives a report of what there is.

    On a CPU low precision is emulated: every low value is rounded. With --provider cuda the mixed model itself runs.

    \b
    Example:
      mixlist train step.onnx --data train.npz --eval-data test.npz --epochs 5
      mixlist train step.onnx --data train.npz --ops-info mindspore-o2 --loss-scaler mindspore --loss-scale 65536
      mixlist train step.onnx --data train.npz --loss-scaler npu --loss-scale 1024 --scaler-arg incr_every_n_steps=100
      mixlist train step.onnx --data train.npz --trace-overflow --tune-scale --resume state.npz --html report.html
    """
    from mixlist.training.run import train
    from mixlist.training.scalers import make_scaler

    rate = exception_rate(max_exception_rate, large_batch)
    settings = _settings(given)
    parameters = _scaler_parameters(loss_scaler, loss_scale, scaler_args)
    make_scaler(loss_scaler, **parameters)
    inputs = (step, data, eval_data, init, *given.values())
    _check_outputs(html, resume, inputs)
    one_standard_input(given.values())
    policy = policy_from(given)
    steps, epochs = _length(steps, epochs)
    with _watched(runs) as told:
        report = train(
            step,
            policy,
            data,
            eval_data=eval_data,
            batch_size=batch_size,
            steps=steps,
            epochs=epochs,
            optimizer=settings,
            init=init,
            runs=runs,
            seed=seed,
            scaler=loss_scaler,
            scaler_parameters=parameters,
            max_exception_rate=rate,
            tolerance=tolerance,
            metric=metric,
            advance_on_skip=advance_on_skip,
            trace_overflow=trace_overflow,
            tune=tune_scale,
            provider=provider,
            state=resume,
            told=told,
        )
    from mixlist.report import train_html, train_terminal

    write_report(report, form, html, train_html.write_html, train_terminal.write_train)
    return int(report.verdict == "fail")


def _settings(given: dict[str, Any]) -> Settings:
    """Takes the optimizer's options out of all that were given."""
    from mixlist.training.optimizers import Settings

    own = ("lr", "momentum", "nesterov", "beta1", "beta2", "eps", "weight_decay", "warmup_steps")
    others = {"name": "optimizer", "schedule": "lr_schedule", "decay": "lr_decay", "decay_steps": "lr_decay_steps"}
    taken = {name: given.pop(name) for name in own}
    return Settings(**taken, **{name: given.pop(option) for name, option in others.items()})


def _scaler_parameters(name: str, scale: float | None, texts: Iterable[str]) -> dict[str, Any]:
    """The scaler's parameters by its own names; raises UsageError for what is no NAME=VALUE or given twice."""
    from mixlist.training.scalers import initial_parameter

    found: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign and value):
            raise UsageError(f"--scaler-arg {text}: this is not NAME=VALUE", hint="for example growth_interval=500")
        if key in found:
            raise UsageError(f"--scaler-arg {key} is given twice", hint="give it once")
        found[key] = value
    if scale is None:
        return found
    own = initial_parameter(name)
    if not own:
        raise UsageError(f"the loss scaler {name} has no scale to set", hint="leave --loss-scale out")
    if own in found:
        raise UsageError(f"--loss-scale is the parameter {own} of the loss scaler {name}", hint="give one of them")
    return {own: scale, **found}


def _length(steps: int | None, epochs: int | None) -> tuple[int | None, int | None]:
    """One of the two; what the command line says wins over a configuration."""
    if steps is None or epochs is None:
        return steps, epochs
    context = click.get_current_context()
    said = [n for n in ("steps", "epochs") if context.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
    if len(said) != 1:
        raise UsageError("--steps and --epochs are two lengths", hint="give one of them")
    return (steps, None) if said == ["steps"] else (None, epochs)


def _check_outputs(html: str | None, resume: str | None, inputs: tuple[object, ...]) -> None:
    from pathlib import Path

    if html is not None and resume is not None and Path(html).resolve() == Path(resume).resolve():
        raise UsageError("--html and --resume would write the same file", hint="name one file each")
    for option, name in (("--html", html), ("--resume", resume)):
        if name is not None:
            check_output(option, name, inputs)


@contextmanager
def _watched(runs: int) -> Iterator[Callable[[Progress], None] | None]:
    """Yields what is told of each step: a bar of all steps for who watches, else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("training", total=None)
        first: list[int] = []

        def told(now: Progress) -> None:
            first[:] = first or [now.seed]
            before = 2 * (now.seed - first[0]) + (now.kind == "mixed")
            text = f"seed {now.seed}, {now.kind}: loss {now.loss:.4g}"
            scaled = f", scale {now.scale:g}" if now.kind == "mixed" else ""
            done = before * now.steps + now.step
            bars.update(task, completed=done, total=2 * runs * now.steps, description=text + scaled)

        yield told
