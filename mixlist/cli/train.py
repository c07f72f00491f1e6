"""``mixlist train``: judge whether a PyTorch training loop works in mixed precision under these lists."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from copy import copy
from dataclasses import replace

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import LARGE_BATCH, apply_large_batch
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import HTML, POLICY_OPTIONS, build_options, declared_options, format_option, pop_policy
from mixlist.cli.parameters import PYTHON_FUNCTION, parse_assignments
from mixlist.cli.result_output import next_command, write_report
from mixlist.errors import UsageError
from mixlist.option_spelling import spell
from mixlist.training.options import AUTOCAST_LISTS, TrainOptions
from mixlist.training.scalers import SCALERS

# Rules about constants and patterns of a graph, which a running loop does not have.
_GRAPH_OPTIONS = ("constants", "protect")
_EXAMPLE = "mixlist train train.py:run"


def _with_default_of_autocast(option: click.Parameter) -> click.Parameter:
    """Return an option whose help has the default of a training."""
    assert isinstance(option, click.Option) and option.name is not None
    option = copy(option)
    default = AUTOCAST_LISTS[option.name] + ("" if option.name == "ops_info" else ", ascend with --ops-info")
    option.help = f"{(option.help or '').partition('  [default')[0]}  [default: {default}]"
    return option


@click.command(
    "train",
    cls=FileCheckingCommand,
    most_used=(
        "--mixlist",
        "--ops-info",
        "--keep-dtype",
        "--precision-mode-v2",
        "--loss-scaler",
        "--loss-scale",
        "--runs",
        "--metric",
        "--tolerance",
        "--format",
        "--html",
    ),
    params=[
        click.Argument(["function"], type=PYTHON_FUNCTION, metavar="FILE.py:FUNCTION"),
        *(
            _with_default_of_autocast(option) if option.name in AUTOCAST_LISTS else option
            for option in POLICY_OPTIONS
            if option.name not in _GRAPH_OPTIONS
        ),
        *declared_options(TrainOptions),
        GroupedOption(
            "--loss-scale", "run", "The scaler's initial scale, or its fixed scale.", metavar="S", type=float
        ),
        GroupedOption(
            "--scaler-arg scaler_args",
            "run",
            "A parameter of the scaler, by the name that its framework uses: growth_interval=500. Can be given"
            " repeatedly.",
            metavar="NAME=VALUE",
            multiple=True,
        ),
        LARGE_BATCH,
        format_option("text", "json"),
        HTML,
        CONFIG,
    ],
)
def command(
    function: str,
    loss_scale: float | None,
    scaler_args: tuple[str, ...],
    output_format: str,
    html: str | None,
    **option_values: object,
) -> int:
    """Judge whether a PyTorch training loop works in mixed precision.

    FILE.py:FUNCTION (or MODULE:FUNCTION) is a function run(seed) that makes a network, trains it with a
    torch.amp.GradScaler, and returns its metric. While it runs, mixlist answers for every GradScaler, also in a
    library. A function run(seed, scaler) gets one. With --loss-scaler none, as for bfloat16, the loop needs none.

    mixlist calls it three times for every seed: in the mixed precision of the lists, with float32 parameters; in
    float32; and in float32 from slightly other parameters (the twin). In the mixed training it rounds the operators
    that the loop runs, forward and backward. A step whose gradients are not all finite is an exception, and is skipped.
    The verdict is pass if the network's own exceptions are rare, the metric is as good as in float32, up to the
    tolerance or what the twins differ by, no training diverges, and gradients do not become zero. It is inconclusive if
    the runs do not show enough. Exit status 0: pass, 1: fail, inconclusive or interrupted, 2: wrong usage, or an error
    of the function. Ctrl-C ends the training and writes the report so far. Without --ops-info, the lists are those of
    torch.autocast: --ops-info pytorch --gray-policy promote.

    \b
    Example:
      mixlist train train.py:run
      mixlist train train.py:run --ops-info mindspore-o2 --loss-scaler mindspore --loss-scale 65536
      mixlist train train.py:run --loss-scaler npu --loss-scale 1024 --scaler-arg incr_every_n_steps=100
      mixlist train train.py:run --mixlist modify.json --runs 5 --html report.html
      mixlist train train.py:run --precision-mode-v2 mixed_bfloat16 --loss-scaler none
    """
    from mixlist.installed_runtime import require_torch
    from mixlist.run.python_function import load_function
    from mixlist.show import terminal
    from mixlist.show.progress_bar import bar
    from mixlist.show.train_document import train_document
    from mixlist.training.run import run_train
    from mixlist.training.verdict import MIN_RUNS

    # Options first: an error in them must not wait for the training.
    apply_large_batch(option_values)
    scaler_name = str(option_values["loss_scaler"] or TrainOptions.loss_scaler)
    parameters = _scaler_parameters(scaler_name, loss_scale, scaler_args)
    options = build_options(TrainOptions(), option_values, scaler_parameters=parameters)
    if option_values["ops_info"] is None:
        option_values |= {name: option_values[name] or value for name, value in AUTOCAST_LISTS.items()}
    policy = pop_policy(dict.fromkeys(_GRAPH_OPTIONS) | option_values)
    require_torch()
    loop = load_function(function, function, _EXAMPLE)
    if options.runs < MIN_RUNS:
        sys.stderr.write(f"note: fewer than {MIN_RUNS} runs can fail, and never pass: {spell('runs', MIN_RUNS + 1)}\n")
    with bar("training", "steps") as progress:
        report = run_train(loop, policy, replace(options, progress=progress), function)
    terminal.write_findings(report.warnings)
    if options.tensorboard is not None:
        sys.stderr.write(f"wrote {terminal.escape_commands(str(options.tensorboard))}\n")
    write_report(report, train_document(report, _train_again), output_format, html)
    return int(report.verdict != "pass")


def _train_again(*arguments: str) -> str:
    """Return the command line of this training with other values of options: ``_train_again("--runs", "4")``."""
    replaced = [
        option.name or ""
        for option in click.get_current_context().command.params
        if isinstance(option, click.Option) and not option.multiple and not set(option.opts).isdisjoint(arguments)
    ]
    if "--loss-scaler" in arguments:
        replaced += ["loss_scale", "scaler_args"]  # another scaler has other parameters
    if "--loss-scale" in arguments:  # in place of the same parameter
        values = click.get_current_context().params
        scaler = SCALERS[str(values["loss_scaler"] or TrainOptions.loss_scaler)]
        kept = [text for text in values["scaler_args"] if not text.startswith(f"{scaler.INITIAL_SCALE_PARAMETER}=")]
        arguments += tuple(part for text in kept for part in ("--scaler-arg", text))
        replaced.append("scaler_args")
    return next_command("train", *arguments, excluded=replaced)


def _scaler_parameters(name: str, scale: float | None, texts: Iterable[str]) -> dict[str, object]:
    """Return the scaler's parameters by the names that its framework uses.

    Raises UsageError for a text that is not NAME=VALUE and for a name that occurs twice.
    """
    parameters: dict[str, object] = {}
    for key, value in parse_assignments(texts, "--scaler-arg", "NAME=VALUE", "growth_interval=500", str):
        if key in parameters:
            raise UsageError(f"--scaler-arg {key} is given twice", hint="give it once")
        parameters[key] = value
    if scale is None:
        return parameters
    # Each framework has its own name for the initial scale: init_scale, init_loss_scale, loss_scale, ...
    scale_parameter = SCALERS[name].INITIAL_SCALE_PARAMETER
    if not scale_parameter:
        raise UsageError(
            f"the loss scaler {name} has no scale to set", hint="leave --loss-scale out, or --loss-scaler none"
        )
    if scale_parameter in parameters:
        raise UsageError(
            f"--loss-scale is the parameter {scale_parameter} of the loss scaler {name}", hint="give one of them"
        )
    return {scale_parameter: scale, **parameters}
