"""``mixlist validate``: checks list files, alone or against a library and a model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from mixlist.cli.options import OP_NAMES, OPS_INFO, PATH, one_standard_input, options
from mixlist.diagnostics import Diagnostic

if TYPE_CHECKING:
    from mixlist.lists.validate import FileReport

KINDS = ["auto", "modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes"]
FORMATS = ["text", "json", "github", "sarif"]


@click.command("validate", short_help="Check list files: their form and their meaning.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@options(
    click.option("--kind", type=click.Choice(KINDS), default="auto", show_default=True, help="What the files are."),
    click.option(
        "--output-format",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        help="github: annotations on a pull request; sarif: SARIF 2.1.0 for code scanning.",
    ),
    click.option("--strict", is_flag=True, help="Warnings fail too."),
    OPS_INFO,
    click.option("--model", type=PATH, help="Check the names against this ONNX model, too."),
    OP_NAMES,
)
def command(
    paths: tuple[str, ...],
    kind: str,
    output_format: str,
    strict: bool,
    ops_info: str | None,
    model: str | None,
    op_names: str | None,
) -> int:
    """Check list files: modify_mixlist, ops-info (a file or a directory), keep_dtype, customize_dtypes.

    Every finding names its place, what is wrong and what to do. Exit status 1 if there is an error (with
    --strict: a finding), 2 if a file cannot be read.

    \b
    Example:
      mixlist validate modify.json
      mixlist validate modify.json --ops-info ascend910b --model model.onnx
      mixlist validate --output-format sarif lists/*.json > findings.sarif
    """
    one_standard_input((*paths, ops_info, model))
    against = _Against(ops_info, model, op_names or "auto")
    reports, unreadable = _check(paths, kind, strict, against)
    _write(output_format, reports)
    findings = [finding for report in reports for finding in report.findings]
    failed = any(strict or finding.severity == "error" for finding in findings)
    _summary(len(reports), findings)
    return 2 if unreadable else int(failed)
