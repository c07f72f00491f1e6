"""``mixlist tune``: the smallest change of the lists under which a model keeps its limits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.data import DATA_OPTIONS, LABELS, batches_from, take_data
from mixlist.cli.limits import LIMITS, OVERFLOW_MODE, RATES, STEPS, Limit, exception_rate, take_limits
from mixlist.cli.options import (
    FILE,
    POLICY_OPTIONS,
    TYPE_HINTS,
    one_standard_input,
    options,
    policy_from,
    read_hints,
)
from mixlist.cli.outputs import check_output
from mixlist.cli.workers import take_workers, worker_options
from mixlist.errors import UsageError

if TYPE_CHECKING:
    from mixlist.graph.io import Loaded
    from mixlist.runtime.feeds import Batches
    from mixlist.tuner.result import TuneReport
    from mixlist.tuner.trials import Trial


@click.command("tune", short_help="Find the smallest list that is safe and fast.")
@click.argument("model", type=FILE)
@options(
    click.option(
        "-o", "--output", metavar="OUT", type=FILE, required=True, help="Where the modify_mixlist file is written."
    ),
    click.option(
        "--node-rules",
        metavar="FILE",
        type=FILE,
        help="Let single nodes stay in float32 too; their rules go to this customize_dtypes file.",
    ),
    click.option("--force", is_flag=True, help="Replace existing outputs."),
    click.option(
        "--objective",
        type=click.Choice(["min-edits", "max-low", "max-speed"]),
        default="min-edits",
        show_default=True,
        help="Fewest edits, most matrix and convolution work in low precision, or least cost.",
    ),
    *POLICY_OPTIONS,
    TYPE_HINTS,
    *DATA_OPTIONS,
    click.option(
        "--validate-on",
        metavar="PATH",
        type=FILE,
        multiple=True,
        help="Data that the search does not see, for a last check. Can be given more than once.",
    ),
    OVERFLOW_MODE,
    STEPS,
    *RATES,
    *LIMITS,
    LABELS,
    click.option(
        "--max-accuracy-loss",
        metavar="X",
        type=Limit(0, 1),
        help="By how much the share of right answers may fall, with --labels.  [default: 0]",
    ),
    click.option("--state", metavar="FILE", type=FILE, help="Keep the trials here; a search that was killed goes on."),
    *worker_options("trials", "default: one for every two cores"),
    click.option("--trace", is_flag=True, help="Tell every trial on standard error."),
    click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
)
def command(
    model: str,
    output: str,
    node_rules: str | None,
    force: bool,
    objective: Any,
    type_hints: str | None,
    provider: str,
    validate_on: tuple[str, ...],
    overflow_mode: str,
    steps: int | None,
    large_batch: bool,
    max_exception_rate: float | None,
    labels: str | None,
    max_accuracy_loss: float | None,
    state: str | None,
    trace: bool,
    form: str,
    **given: Any,
) -> int:
    """Find the smallest change of the lists under which MODEL keeps the limits of 'mixlist check' on data.

    OUT replaces the modify_mixlist file that was given, FILE the customize_dtypes file; all other options of the
    policy stay as they were. Both are written only if a check of its own says that the result keeps the limits. If it
    does not do so on the data of --validate-on, they are written all the same, and the verdict is fail. With --labels
    the share of right answers is judged, and outputs have no limits but those that are given.

    Ctrl-C ends the search; the best list so far goes to OUT with .partial before its suffix (modify.partial.json).
    Exit status 0: pass, 1: fail, no list found, or interrupted.

    \b
    Example:
      mixlist tune model.onnx -o modify.json --data batches/
      mixlist tune model.onnx -o modify.json --data batches/ --node-rules nodes.txt --state search.jsonl --trace
      mixlist tune model.onnx -o modify.json --ops-info mindspore-o3 --random 4 --dim batch=8 --objective max-low
    """
    import mixlist
    from mixlist.checker.accuracy import Limits
    from mixlist.checker.label_accuracy import read_labels
    from mixlist.graph.io import load
    from mixlist.runtime.feeds import read_batches

    rate = exception_rate(max_exception_rate, large_batch)
    limits = take_limits(given, Limits() if labels is None else Limits(normalized=None, cosine=None))
    if max_accuracy_loss is not None and labels is None:
        raise UsageError("--max-accuracy-loss is of the answers that --labels knows", hint="give --labels FILE")
    workers = take_workers(given)
    data = take_data(given)
    outputs = _Outputs(output, node_rules)
    inputs = (model, labels, type_hints, *data["data"], *validate_on, *given.values())
    outputs.look(inputs, state, force)
    one_standard_input((type_hints, *given.values()))
    policy = policy_from(given)
    hints = read_hints(type_hints) if type_hints is not None else None
    source = load(model)
    batches = batches_from(data, source.proto)
    others = read_batches(validate_on, source.proto) if validate_on else None
    _refuse_seen(batches, others)
    outputs.look(_files(source, batches, others, given["ops_info"]), state, force)
    answers = read_labels(labels) if labels is not None else None
    with _watched(trace) as told:
        report = mixlist.tune(
            source,
            policy,
            batches,
            objective=objective,
            node_rules=node_rules is not None,
            limits=limits,
            max_exception_rate=rate,
            labels=answers,
            max_accuracy_loss=max_accuracy_loss or 0.0,
            overflow_mode=overflow_mode,
            provider=provider,
            steps=steps,
            validate_on=others,
            state=state,
            **workers,
            type_hints=hints,
            isolate=True,
            told=told,
        )
    _write(report, outputs, force, form)
    return int(report.verdict == "fail")


class _Outputs:
    """OUT and FILE, and where they go when the search is interrupted."""

    def __init__(self, lists: str, rules: str | None) -> None:
        self.lists, self.rules = lists, rules
        self.partial = _partial(lists), None if rules is None else _partial(rules)

    def look(self, inputs: tuple[object, ...], state: str | None, force: bool) -> None:
        """Raises before the long run where one of them, or the state, cannot be written or is an input."""
        names = {"--output": self.lists, "--node-rules": self.rules, "--state": state}
        there = {option: name for option, name in names.items() if name is not None}
        every = [name for name in (*there.values(), *self.partial) if name is not None]
        if len({Path(name).resolve() for name in every}) < len(every):
            raise UsageError(f"{' and '.join(there)} would write the same file", hint="name one file each")
        for option, name in there.items():
            check_output(option, name, inputs, force=force or option == "--state")
        for partial in self.partial:
            if partial is not None:
                check_output("the partial output", partial, inputs)


def _partial(name: str) -> str:
    """``modify.partial.json`` for ``modify.json``."""
    path = Path(name)
    return str(path.parent / f"{path.stem}.partial{path.suffix}")


def _files(source: Loaded, batches: Batches, others: Batches | None, ops_info: str | None) -> tuple[object, ...]:
    """What lies in the folders that were given, and the model's weights."""
    from mixlist.graph.save import inputs_of

    found: list[object] = [*inputs_of(source)]
    for name in (*batches.names(), *(others.names() if others is not None else ())):
        found += [name, *Path(name).glob("*.pb")]
    if ops_info is not None and Path(ops_info).is_dir():
        found += Path(ops_info).glob("*.json")
    return tuple(found)


def _refuse_seen(batches: Batches, others: Batches | None) -> None:
    seen = {Path(name).resolve() for name in batches.names()}
    for name in others.names() if others is not None else ():
        if Path(name).resolve() in seen:
            raise UsageError(f"--validate-on: {name} is data of the search", hint="give data that it does not see")


@contextmanager
def _watched(trace: bool) -> Iterator[Callable[[Trial], None]]:
    """Yields what is told of each trial: a line of text, else a count for who watches."""
    from mixlist.report.progress import count_bar
    from mixlist.report.tune_terminal import trial_line

    count = 0

    def line(trial: Trial) -> None:
        nonlocal count
        count += 1
        sys.stderr.write(trial_line(count, trial) + "\n")
        sys.stderr.flush()

    if trace:
        yield line
        return
    with count_bar("trials", None) as bar:
        yield lambda trial: bar(1) if bar is not None else None


def _write(report: TuneReport, outputs: _Outputs, force: bool, form: str) -> None:
    """The files, then the report on standard output; warnings, and what was written, on standard error."""
    from mixlist.report import json_output, terminal, tune_terminal

    for warning in report.warnings:
        sys.stderr.write(f"{terminal.paint('warning', 'yellow', sys.stderr)}: {terminal.clean(warning)}\n")
    try:
        told = _save(report, outputs, force)
        sys.stderr.write(f"{terminal.clean(told)}\n")
    finally:  # a file that cannot be written after all does not take the report with it
        if form == "json":
            json_output.write_json(report.to_json(), sys.stdout)
        else:
            tune_terminal.write_tune(report, sys.stdout)


def _save(report: TuneReport, outputs: _Outputs, force: bool) -> str:
    """Writes the files where there is a list; returns what to say of them."""
    if not report.modify_mixlist:
        return "nothing was written"
    if not report.complete:
        lists, rules = outputs.partial
        report.save(lists, rules, force=True)
        return f"interrupted: wrote {_and(lists, rules)}; {outputs.lists} is as it was"
    report.save(outputs.lists, outputs.rules, force=force)
    failed = "; it keeps the limits on the data of the search, but not on that of --validate-on"
    return f"wrote {_and(outputs.lists, outputs.rules)}{failed if report.verdict == 'fail' else ''}"


def _and(*names: str | None) -> str:
    return " and ".join(name for name in names if name is not None)
