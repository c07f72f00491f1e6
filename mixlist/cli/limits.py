"""What ``check`` and ``tune`` judge by: how overflows are counted, and the limits of outputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from mixlist.checker.exception_rate import DEFAULT_LIMIT, LARGE_BATCH_LIMIT
from mixlist.errors import UsageError

if TYPE_CHECKING:
    from mixlist.checker.accuracy import Limits


class Limit(click.FloatRange):
    """A number, infinity included; NaN would keep every limit or none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("NaN is no limit", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


def _limit(option: str, name: str, low: float | None, high: float | None, text: str) -> Any:
    return click.option(option, name, metavar="X", type=Limit(low, high), help=text)


OVERFLOW_MODE = click.option(
    "--overflow-mode",
    type=click.Choice(["inf", "saturate"]),
    default="inf",
    show_default=True,
    help="What the accelerator makes of a value out of range: infinity, or its largest finite value.",
)
STEPS = click.option("--steps", metavar="N", type=click.IntRange(min=1), help="Stop after N batches.")
RATES = (
    click.option("--large-batch", is_flag=True, help="The exception rate for a large global batch: 0.1 %."),
    click.option(
        "--max-exception-rate",
        metavar="R",
        type=Limit(0, 1),
        help="Share of batches with an overflow from which the check fails.  [default: 0.005]",
    ),
)
LIMITS = (
    _limit("--max-abs-error", "max_abs", 0, None, "Largest absolute error of any output."),
    _limit("--max-rel-error", "max_rel", 0, None, "Largest relative error, where the reference is not zero."),
    _limit(
        "--max-normalized-error",
        "normalized",
        0,
        None,
        "L2 norm of the difference over that of the reference ('inf': no limit).  [default: 0.01]",
    ),
    _limit("--min-cosine", "cosine", -1, 1, "Cosine similarity ('-1': no limit).  [default: 0.999]"),
    _limit("--min-snr", "snr", None, None, "Signal-to-noise ratio, in dB."),
    _limit("--min-top1", "top1", 0, 1, "Share of rows whose largest element is at the same place."),
    _limit(
        "--max-mismatch",
        "mismatch",
        0,
        1,
        "Share of differing values of an integer, bool or string output.  [default: 0.01, or any if they err little]",
    ),
)
_NAMES = ("max_abs", "max_rel", "normalized", "cosine", "snr", "top1", "mismatch")


def take_limits(given: dict[str, Any], base: Limits) -> Limits:
    """Takes the limits out of all options that were given: ``base`` with those that the user named."""
    from dataclasses import replace

    return replace(base, **{name: value for name in _NAMES if (value := given.pop(name)) is not None})


def exception_rate(asked: float | None, large_batch: bool) -> float:
    """Return the exception rate that fails."""
    if asked is not None and large_batch:
        context = click.get_current_context()
        both = ("large_batch", "max_exception_rate")
        said = [n for n in both if context.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
        if len(said) != 1:  # else the command line wins over a configuration
            raise UsageError("--large-batch and --max-exception-rate are two exception rates", hint="give one of them")
        large_batch = said == ["large_batch"]
    if large_batch:
        return LARGE_BATCH_LIMIT
    return DEFAULT_LIMIT if asked is None else asked
