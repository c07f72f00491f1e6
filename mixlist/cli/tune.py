"""``mixlist tune``: the smallest change of the lists under which a model keeps its limits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from mixlist.checker.accuracy import Limits
from mixlist.cli.command_files import Command, load_model
from mixlist.cli.data import DataOptions, batches_from, take_data
from mixlist.cli.declared import build, declared
from mixlist.cli.judging import LARGE_BATCH, apply_large_batch, refuse_two_workplaces
from mixlist.cli.next_command import next_command
from mixlist.cli.options import PLAN_OPTIONS, format_option, take_policy, take_type_hints
from mixlist.cli.outputs import write_result
from mixlist.cli.parameters import CONFIG, MODEL, PathType
from mixlist.errors import UsageError
from mixlist.report import terminal
from mixlist.report.terminal import clean
from mixlist.tuner.options import TuneOptions, default_limits

if TYPE_CHECKING:
    from mixlist.progress import ProgressCallback
    from mixlist.runtime.feeds import Batches
    from mixlist.tuner.result import TuneReport
    from mixlist.tuner.trials import Trial


def _partial(name: str) -> str:
    """``modify.partial.json`` for ``modify.json``."""
    path = Path(name)
    return str(path.parent / f"{path.stem}.partial{path.suffix}")


_LISTS = PathType("writes", must_be_new=True, may_replace="mixlist", also=_partial)
_RULES = PathType("writes", must_be_new=True, also=_partial)


@click.command(
    "tune",
    cls=Command,
    params=[
        click.Argument(["model"], type=MODEL),
        click.Option(
            ["-o", "--output"],
            metavar="OUT",
            type=_LISTS,
            required=True,
            help="Where the modify_mixlist file is written.",
        ),
        click.Option(
            ["--node-rules", "rules"],
            metavar="FILE",
            type=_RULES,
            help="Let single nodes stay in float32 too; their rules go to this customize_dtypes file.",
        ),
        click.Option(["--force"], is_flag=True, help="Replace existing outputs."),
        *PLAN_OPTIONS,
        *declared(DataOptions, TuneOptions),
        LARGE_BATCH,
        *declared(Limits),
        click.Option(["--trace"], is_flag=True, help="Report every trial on standard error."),
        format_option("text", "json"),
        CONFIG,
    ],
)
def command(
    model: str,
    output: str,
    rules: str | None,
    force: bool,
    validate_on: tuple[str, ...],
    labels: str | None,
    state: str | None,
    trace: bool,
    form: str,
    **given: object,
) -> int:
    """Find the smallest change of the lists under which MODEL keeps the limits of 'mixlist check' on data.

    OUT replaces the modify_mixlist file that was given, FILE the customize_dtypes file; all other options of the
    policy stay as they were. Both are written only if a check of its own says that the result keeps the limits. From
    four batches on the last quarter is held out of the search, unless --validate-on gives other data. If the result
    does not keep the limits on that data, it is written all the same, and the verdict is fail. With --labels
    the share of right answers is judged, and outputs have no limits but those that are given.

    Ctrl-C ends the search; the best list so far goes to OUT with .partial before its suffix (modify.partial.json).
    Exit status 0: pass, 1: fail, inconclusive, no list found, or interrupted.

    \b
    Example:
      mixlist tune model.onnx -o modify.json --data batches/
      mixlist tune model.onnx -o modify.json --data batches/ --node-rules nodes.txt --state search.jsonl --trace
      mixlist tune model.onnx -o modify.json --ops-info mindspore-o3 --random 4 --dim batch=8 --objective max-low
    """
    from mixlist.checker.label_accuracy import read_labels
    from mixlist.report.tune_terminal import write_tune
    from mixlist.runtime.feeds import read_batches
    from mixlist.tuner.run import run_tune

    apply_large_batch(given)
    refuse_two_workplaces(given)
    if given["max_accuracy_loss"] is not None and labels is None:
        raise UsageError("--max-accuracy-loss is of the answers that --labels knows", hint="give --labels FILE")
    policy = take_policy(given)
    hints = take_type_hints(given)
    source = load_model(model)
    batches = batches_from(take_data(given), source.proto)
    others = read_batches(validate_on, source.proto) if validate_on else None
    _refuse_seen(batches, others)
    options = build(
        TuneOptions(),
        given,
        node_rules=rules is not None,
        limits=build(default_limits(labelled=labels is not None), given),
        labels=None if labels is None else read_labels(labels),
        state=state,
        validate_on=others,
        type_hints=hints,
        isolate=True,
    )
    with _watched(trace) as progress:
        report = run_tune(source, policy, batches, replace(options, progress=progress))
    report = replace(report, next_command=_next_command(report, output))
    terminal.warn(report.warnings)
    try:
        saved = _save(report, output, rules, force)
        sys.stderr.write(f"{clean(saved)}\n")
    finally:  # a file that cannot be written after all does not take the report with it
        write_result(report, form, write_tune)
    return int(report.verdict != "pass")


def _next_command(report: TuneReport, output: str) -> str:
    """Return the command line that writes the other result where it is recommended, else ""."""
    other = report.alternative
    if other is None or not other.recommended:
        return ""
    rules = Path(output).with_suffix(".nodes.txt")
    more = ("--objective", other.objective, "--node-rules", str(rules), "--force")
    return next_command(command, *more, without=("objective", "force", "form", "trace"))


def _refuse_seen(batches: Batches, others: Batches | None) -> None:
    seen = {Path(name).resolve() for name in batches.names()}
    for name in others.names() if others is not None else ():
        if Path(name).resolve() in seen:
            raise UsageError(f"--validate-on: {name} is data of the search", hint="give data that it does not see")


@contextmanager
def _watched(trace: bool) -> Iterator[ProgressCallback | None]:
    """Yield a ``progress`` callback that reports each trial: as a line of text, or on the progress bar."""
    from mixlist.report.progress import bar
    from mixlist.report.tune_terminal import trial_line

    if trace:
        yield lambda now: print(trial_line(now.done, cast("Trial", now.detail)), file=sys.stderr, flush=True)
        return
    with bar("trials", "trials") as progress:
        yield progress


def _save(report: TuneReport, lists: str, rules: str | None, force: bool) -> str:
    """Write the files where there is a list; return a sentence about them."""
    if not report.modify_mixlist:
        return "nothing was written"
    if not report.complete:
        partial = _partial(lists), None if rules is None else _partial(rules)
        report.save(*partial, force=True)
        return f"interrupted: {_wrote(*partial)}; {lists} is as it was"
    report.save(lists, rules, force=force)
    failed = "; it keeps the limits on the data of the search, but not on that of the validation"
    unknown = "; on the data of the validation too little could be compared"
    return _wrote(lists, rules) + {"pass": "", "fail": failed, "inconclusive": unknown}[report.verdict]


def _wrote(lists: str, rules: str | None) -> str:
    return f"wrote {lists}" if rules is None else f"wrote {lists} and {rules}"
