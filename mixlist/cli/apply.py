"""``mixlist apply``: writes the model in mixed precision."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.options import POLICY_OPTIONS, options, policy_from
from mixlist.errors import FileError, UsageError

if TYPE_CHECKING:
    from mixlist.graph.io import Loaded


@click.command("apply", short_help="Write a model in mixed precision.")
@click.argument("model", type=click.Path())
@options(
    click.option("-o", "--output", metavar="OUT", type=click.Path(), required=True, help="Where the result is written."),
    *POLICY_OPTIONS,
    click.option(
        "--keep-io-types/--no-keep-io-types",
        default=True,
        help="Whether graph inputs and outputs keep their types.  [default: keep]",
    ),
    click.option("--keep-io", metavar="NAME", multiple=True, help="An input or output that keeps its type all the same."),
    click.option(
        "--external-data",
        type=click.Choice(["auto", "yes", "no"]),
        default="auto",
        show_default=True,
        help="Whether weights go to a file of their own; auto: as in MODEL, or where 2 GB ask for it.",
    ),
    click.option("--inline-functions", is_flag=True, help="Inline model-local functions first."),
    click.option("--opset", type=int, metavar="N", help="Convert to this opset first; a later one may allow more types."),
    click.option("--force", is_flag=True, help="Replace an existing OUT."),
    click.option("--dry-run", is_flag=True, help="Do all but write OUT."),
    click.option("--report", metavar="FILE", type=PATH, help="Write what was done as JSON ('-': standard output)."),
)
def command(
    model: str,
    output: str,
    keep_io_types: bool,
    keep_io: tuple[str, ...],
    external_data: str,
    inline_functions: bool,
    opset: int | None,
    force: bool,
    dry_run: bool,
    report: str | None,
    **given: Any,
) -> None:
    """Write MODEL to OUT in mixed precision. MODEL is never touched; OUT appears whole or not at all.

    \b
    Example:
      mixlist apply model.onnx -o mixed.onnx --mixlist modify.json
      mixlist apply model.onnx -o mixed.onnx --ops-info ascend910b --dry-run
      mixlist apply model.onnx -o mixed.onnx --precision-mode-v2 mixed_bfloat16 --report done.json
    """
