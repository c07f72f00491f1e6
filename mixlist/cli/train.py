"""``mixlist train``: judge whether a network is safe to train under these lists, with loss scaling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import click

from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.declared_options import build_options, declared_options
from mixlist.cli.options import HTML, POLICY_OPTIONS, format_option, pop_policy
from mixlist.cli.parameters import CONFIG, INPUT, MODEL, keep_one_option, split_assignments
from mixlist.cli.result_output import write_report_and_page
from mixlist.cli.verdict_options import LARGE_BATCH, apply_large_batch
from mixlist.errors import UsageError
from mixlist.training.optimizers import Settings
from mixlist.training.options import TrainOptions
from mixlist.training.parameter_groups import read_parameter_groups


@click.command(
    "train",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["step"], type=MODEL),
        click.Option(
            ["--data"],
            metavar="PATH",
            type=INPUT,
            required=True,
            help="A .npz file of the batch inputs by name, samples along the first axis; a directory of such files; or"
            " a directory with a .npy file for each input.",
        ),
        *declared_options(Settings),
        click.Option(
            ["--param-groups"],
            metavar="FILE",
            type=INPUT,
            help='A JSON file of parameter groups: [{"match": REGEX, "lr": X, "weight_decay": X}, ...]. A parameter'
            " belongs to the first group that matches its name.",
        ),
        *POLICY_OPTIONS,
        *declared_options(TrainOptions),
        click.Option(["--loss-scale"], metavar="S", type=float, help="The scaler's initial scale, or its fixed scale."),
        click.Option(
            ["--scaler-arg", "scaler_args"],
            metavar="NAME=VALUE",
            multiple=True,
            help="A parameter of the scaler, by the name that its framework uses: growth_interval=500. Can be given"
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
    param_groups: str | None,
    loss_scale: float | None,
    scaler_args: tuple[str, ...],
    output_format: str,
    html: str | None,
    **option_values: object,
) -> int:
    """Judge whether a network is safe to train in mixed precision. This writes only the report and the state.

    STEP is a training-step graph: an ONNX model whose inputs are the parameters, a batch and 'loss_scale', and whose
    outputs are 'loss' and 'grad.PARAMETER' for each parameter. mixlist.training.export_step makes one from a PyTorch
    module.

    For every seed the same batches train the network three times: in float32, in float32 from slightly other weights
    (its twin), and in the mixed precision of the lists, with float32 master weights and loss scaling. A step whose
    gradients are not all finite is an exception (--overflow-detection); its update is skipped. The verdict is pass if
    exceptions are rare in the steady state of the loss scaler, the metric is as good as in float32, up to the tolerance
    or what the twins differ by, no training diverges, and gradients do not become zero. It is inconclusive if the runs
    do not show enough. Exit status 0: pass, 1: fail, inconclusive or interrupted. Ctrl-C ends the training and writes
    the report so far.

    On a CPU low precision is emulated: every low-precision value is rounded. With --provider cuda the mixed model
    itself runs.

    \b
    Example:
      mixlist train step.onnx --data train.npz --eval-data test.npz --epochs 5
      mixlist train step.onnx --data train.npz --ops-info mindspore-o2 --loss-scaler mindspore --loss-scale 65536
      mixlist train step.onnx --data train.npz --loss-scaler npu --loss-scale 1024 --scaler-arg incr_every_n_steps=100
      mixlist train step.onnx --data train.npz --trace-overflow --tune-scale --state state.npz --html report.html
    """
    from mixlist.report import terminal, train_html, train_terminal
    from mixlist.report.progress import bar
    from mixlist.training.run import run_train
    from mixlist.training.scalers import make_scaler

    # Options first: an error in them must not wait for the model and the data.
    apply_large_batch(option_values)
    keep_one_option(option_values, "steps", "epochs", "--steps and --epochs both set the length")
    groups = read_parameter_groups(param_groups) if param_groups is not None else ()
    settings = build_options(Settings(), option_values, parameter_groups=groups)
    options = build_options(TrainOptions(), option_values, optimizer=settings, state=state)
    parameters = _scaler_parameters(options.scaler, loss_scale, scaler_args)
    # Raises for a wrong parameter. The runs make scalers of their own.
    make_scaler(options.scaler, **parameters)
    policy = pop_policy(option_values)
    with bar("training", "steps") as progress:
        options = replace(options, scaler_parameters=parameters, progress=progress)
        report = run_train(load_input_model(step), policy, data, options)
    terminal.write_findings(report.warnings)
    write_report_and_page(report, output_format, html, train_html.render, train_terminal.write_train)
    return int(report.verdict != "pass")


def _scaler_parameters(name: str, scale: float | None, texts: Iterable[str]) -> dict[str, object]:
    """Return the scaler's parameters by the names that its framework uses.

    Raises UsageError for a text that is not NAME=VALUE and for a name that occurs twice.
    """
    from mixlist.training.scalers import SCALERS

    parameters: dict[str, object] = {}
    for key, value in split_assignments(texts, "--scaler-arg", "NAME=VALUE", "growth_interval=500"):
        if key in parameters:
            raise UsageError(f"--scaler-arg {key} is given twice", hint="give it once")
        parameters[key] = value
    if scale is None:
        return parameters
    # Each framework has its own name for the initial scale: init_scale, init_loss_scale, loss_scale, ...
    scale_parameter = SCALERS[name].INITIAL_SCALE_PARAMETER
    if not scale_parameter:
        raise UsageError(f"the loss scaler {name} has no scale to set", hint="leave --loss-scale out")
    if scale_parameter in parameters:
        raise UsageError(
            f"--loss-scale is the parameter {scale_parameter} of the loss scaler {name}", hint="give one of them"
        )
    return {scale_parameter: scale, **parameters}
