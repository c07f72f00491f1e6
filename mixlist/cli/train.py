"""``mixlist train``: decide whether a network can be trained under these lists and with this loss scaling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import click

from mixlist.cli.command_files import Command, load_model
from mixlist.cli.declared import build, declared
from mixlist.cli.judging import LARGE_BATCH, apply_large_batch
from mixlist.cli.options import HTML, POLICY_OPTIONS, format_option, take_policy
from mixlist.cli.outputs import write_report
from mixlist.cli.parameters import CONFIG, FILE, MODEL, keep_one, names_and_values
from mixlist.errors import UsageError
from mixlist.training.optimizers import Settings
from mixlist.training.options import TrainOptions


@click.command(
    "train",
    cls=Command,
    params=[
        click.Argument(["step"], type=MODEL),
        click.Option(
            ["--data"],
            metavar="FILE",
            type=FILE,
            required=True,
            help="A .npz file of the batch inputs by name, samples along the first axis.",
        ),
        *declared(Settings),
        *POLICY_OPTIONS,
        *declared(TrainOptions),
        click.Option(["--loss-scale"], metavar="S", type=float, help="The scaler's first scale, or its fixed one."),
        click.Option(
            ["--scaler-arg", "scaler_args"],
            metavar="NAME=VALUE",
            multiple=True,
            help="A parameter of the scaler by its framework's name, such as growth_interval=500. Can be given"
            " repeatedly.",
        ),
        LARGE_BATCH,
        format_option("text", "json"),
        HTML,
        CONFIG,
    ],
)
def command(
    step: str,
    data: str,
    state: str | None,
    loss_scale: float | None,
    scaler_args: tuple[str, ...],
    form: str,
    html: str | None,
    **given: object,
) -> int:
    """Find out whether a network may be trained in mixed precision. Nothing is written but the report and the state.

    STEP is a training-step graph: an ONNX model whose inputs are the parameters, a batch and 'loss_scale', and whose
    outputs are 'loss' and 'grad.PARAMETER' for each parameter. mixlist.training.export_step makes one from a PyTorch
    module.

    For every seed the same batches train it twice: in float32, and as the lists say, with float32 master weights and
    the loss scaled. A step whose gradients are not all finite is an exception; its update is skipped. The verdict is
    pass where exceptions stay below their limit, the metric is as good as in float32 and constant over at least three
    runs, and no training diverges; it is inconclusive where training in float32 comes to nothing. Exit status 0: pass,
    1: fail, inconclusive or interrupted. Ctrl-C gives a report of what there is.

    On a CPU low precision is emulated: every low value is rounded. With --provider cuda the mixed model itself runs.

    \b
    Example:
      mixlist train step.onnx --data train.npz --eval-data test.npz --epochs 5
      mixlist train step.onnx --data train.npz --ops-info mindspore-o2 --loss-scaler mindspore --loss-scale 65536
      mixlist train step.onnx --data train.npz --loss-scaler npu --loss-scale 1024 --scaler-arg incr_every_n_steps=100
      mixlist train step.onnx --data train.npz --trace-overflow --tune-scale --state state.npz --html report.html
    """
    from mixlist.report import train_html, train_terminal
    from mixlist.report.progress import bar
    from mixlist.training.run import run_train
    from mixlist.training.scalers import make_scaler

    apply_large_batch(given)
    keep_one(given, "steps", "epochs", "--steps and --epochs are two lengths")
    settings = build(Settings(), given)
    options = build(TrainOptions(), given, optimizer=settings, state=state)
    parameters = _scaler_parameters(options.scaler, loss_scale, scaler_args)
    make_scaler(options.scaler, **parameters)
    policy = take_policy(given)
    with bar("training", "steps") as progress:
        options = replace(options, scaler_parameters=parameters, progress=progress)
        report = run_train(load_model(step), policy, data, options)
    write_report(report, form, html, train_html.render, train_terminal.write_train)
    return int(report.verdict != "pass")


def _scaler_parameters(name: str, scale: float | None, texts: Iterable[str]) -> dict[str, object]:
    """The scaler's parameters by its own names; raises UsageError for what is no NAME=VALUE or given twice."""
    from mixlist.training.scalers import SCALERS

    found: dict[str, object] = {}
    for key, value in names_and_values(texts, "--scaler-arg", "NAME=VALUE", "growth_interval=500"):
        if key in found:
            raise UsageError(f"--scaler-arg {key} is given twice", hint="give it once")
        found[key] = value
    if scale is None:
        return found
    own = SCALERS[name].INITIAL_SCALE_PARAMETER
    if not own:
        raise UsageError(f"the loss scaler {name} has no scale to set", hint="leave --loss-scale out")
    if own in found:
        raise UsageError(f"--loss-scale is the parameter {own} of the loss scaler {name}", hint="give one of them")
    return {own: scale, **found}
