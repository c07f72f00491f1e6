"""``mixlist resolve``: show which precision the nodes get, and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.name_completion import complete_node, complete_op_type, complete_rule, complete_scope
from mixlist.cli.options import (
    PLAN_OPTIONS,
    format_option,
    pop_policy,
    pop_type_hints,
    resolve_with_progress,
    target_option,
)
from mixlist.cli.parameters import MODEL
from mixlist.lists.library import ListName
from mixlist.lists.suggestions import did_you_mean
from mixlist.model.operator_names import operator_name

if TYPE_CHECKING:
    from mixlist.decide import Decision, Plan
    from mixlist.targets.target import Target

MAX_NODES = 50  # the number of nodes in the text without --all


def _filter_option(name: str, metavar: str, description: str, **attributes: Any) -> GroupedOption:
    return GroupedOption(f"--{name}", "output", description, metavar=metavar, multiple=True, **attributes)


# Nodes are shown if they match one value of each of these options that is given.
FILTERS = (
    _filter_option(
        "op",
        "TYPE",
        "Show only nodes of this op type. May be repeated, like the next four options.",
        shell_complete=complete_op_type,
    ),
    _filter_option("list", "LIST", "Show only nodes of this list.", type=click.Choice([*get_args(ListName), "none"])),
    _filter_option("precision", "TYPE", "Show only nodes of this precision, such as float32."),
    _filter_option(
        "rule", "RULE", "Show only nodes that this rule decides, such as follow or S4.6.", shell_complete=complete_rule
    ),
    _filter_option(
        "scope",
        "PREFIX",
        "Show only nodes whose name or scope begins with this text. '*' and '?' match as in a shell.",
        shell_complete=complete_scope,
    ),
)


@click.command(
    "resolve",
    cls=FileCheckingCommand,
    most_used=(
        "--mixlist",
        "--ops-info",
        "--precision-mode-v2",
        "--keep-dtype",
        "--op",
        "--precision",
        "--explain",
        "--target",
        "--format",
        "--all",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        *PLAN_OPTIONS,
        format_option("text", "json", "csv"),
        GroupedOption("--all show_all", "output", f"Show all nodes, not only {MAX_NODES}.", is_flag=True),
        *FILTERS,
        GroupedOption(
            "--explain",
            "output",
            "Follow the decision from this node (NAME, SCOPE/NAME or ./NAME, or the name of its output) to the node"
            " that caused it.",
            metavar="NODE",
            shell_complete=complete_node,
        ),
        target_option(
            "Show only low-precision nodes, with whether this target has a kernel for each, and what happens otherwise;"
            " with --explain, say this for NODE. FILE is a table of another target. Needs no GPU.",
        ),
        CONFIG,
    ],
)
def command(
    model: str,
    output_format: str,
    show_all: bool,
    explain: str | None,
    target: str | None,
    **option_values: object,
) -> None:
    """Show the precision of the nodes and the reasons, first by operator, then by node. This writes no file.

    The text begins with the operators of each list, precision and rule, and the number of their nodes. Then it has the
    nodes: first those that stay in high precision, then those that become low. Neighbors with one operator and reason
    have one row. With a filter, it has all nodes that match, in order of computation. JSON and CSV have every node, or
    every node that matches. With --target and --precision-mode-v2 origin, the text says whether MODEL as it is keeps
    the type rules of the target.

    \b
    Example:
      mixlist resolve model.onnx --mixlist modify.json
      mixlist resolve model.onnx --op Softmax --precision float32 --all
      mixlist resolve model.onnx --explain /fc/MatMul
      mixlist resolve model.onnx --target tensorrt
      mixlist resolve mixed.onnx --target tensorrt --precision-mode-v2 origin
      mixlist resolve model.onnx --format json | jq '.counts'
    """
    from mixlist.show import json_csv, resolve_document, terminal

    filters = {str(option.name): cast(Sequence[str], option_values.pop(str(option.name))) for option in FILTERS}
    plan = resolve_with_progress(model, pop_policy(option_values), pop_type_hints(option_values))
    terminal.write_findings(plan.warnings)
    if explain is not None and target is not None:
        _explain_for_target(plan, plan.explain(explain), target, output_format)
        return
    if explain is not None:
        chain = plan.explain(explain)
        if output_format == "json":
            json_csv.write_json(resolve_document.chain_json(plan, chain), sys.stdout)
        elif output_format == "csv":
            resolve_document.write_node_csv(chain, sys.stdout)
        else:
            sys.stdout.write(resolve_document.chain_text(chain))
        return
    _report_missing_op_types(plan, filters["op"])
    if target is not None:
        _write_low_nodes(plan, target, filters, output_format, show_all)
        return
    nodes = tuple(node for node in plan.nodes if _matches(node, filters))
    if output_format == "json":
        json_csv.write_json(resolve_document.plan_json(plan, nodes), sys.stdout)
    elif output_format == "csv":
        resolve_document.write_node_csv(nodes, sys.stdout)
    else:
        has_filter = any(filters.values())
        shown_nodes = nodes if has_filter else resolve_document.select_nodes(nodes)
        document = resolve_document.resolve_document(
            nodes, shown_nodes, None if show_all else MAX_NODES, plan.nodes, joins=not (has_filter or show_all)
        )
        terminal.write_document(document, sys.stdout)


def _write_low_nodes(
    plan: Plan, target_name: str, filters: Mapping[str, Sequence[str]], output_format: str, show_all: bool
) -> None:
    """Write the low-precision nodes that match, with what a target does with each."""
    from mixlist.show import json_csv, resolve_document, terminal
    from mixlist.targets.target import load_target
    from mixlist.targets.target_plan import find_low_nodes

    target = load_target(target_name)
    resolve_document.write_source(target, sys.stderr)
    if output_format == "text":
        _check_unchanged_model(plan, target)
    low_nodes = [node for node in find_low_nodes(plan, target) if _matches(node.decision, filters)]
    pairs = [(node.decision, node) for node in low_nodes]
    if output_format == "json":
        result = resolve_document.plan_json(plan, [decision for decision, _ in pairs])
        json_csv.write_json(resolve_document.add_target_json(result, "nodes", target, pairs), sys.stdout)
    elif output_format == "csv":
        resolve_document.write_target_csv(pairs, sys.stdout)
    elif not show_all and not any(filters.values()) and all(node.has_kernel for node in low_nodes):
        low, count = plan.policy.mode.low, len(low_nodes)
        # "every node has a kernel" would be read as a promise for a model without a low node.
        summary = f"{count} of {count} {low} nodes have a kernel of {target.name}" if count else f"no node is {low}"
        sys.stdout.write(f"{summary}\n")
    else:
        document = resolve_document.low_nodes_document(low_nodes, None if show_all else MAX_NODES)
        terminal.write_document(document, sys.stdout)


def _check_unchanged_model(plan: Plan, target: Target) -> None:
    """Write whether MODEL keeps the type rules of a strongly typed target, if the policy changes no node of it."""
    if not target.strongly_typed or any(node.changed for node in plan.nodes):
        return
    from mixlist.show import terminal
    from mixlist.show.apply_document import describe_check
    from mixlist.targets.model_check import check_model

    for line in describe_check(target.name, target.name, check_model(plan.solution.loaded, target)):
        sys.stderr.write(f"{terminal.escape_commands(line)}\n")


def _explain_for_target(plan: Plan, chain: Sequence[Decision], target_name: str, output_format: str) -> None:
    """Write the chain of an explained node, with what a target does with the low-precision nodes of the chain."""
    from mixlist.show import json_csv, resolve_document
    from mixlist.targets.target import load_target
    from mixlist.targets.target_plan import find_low_nodes

    target = load_target(target_name)
    resolve_document.write_source(target, sys.stderr)
    # Each Decision of the chain is one of ``plan.nodes``, of which the low nodes are a part.
    low_nodes = {id(node.decision): node for node in find_low_nodes(plan, target)}
    explained = [(decision, low_nodes.get(id(decision))) for decision in chain]
    if output_format == "json":
        result = resolve_document.chain_json(plan, chain)
        json_csv.write_json(resolve_document.add_target_json(result, "chain", target, explained), sys.stdout)
    elif output_format == "csv":
        resolve_document.write_target_csv(explained, sys.stdout)
    else:
        sys.stdout.write(resolve_document.chain_text(chain))
        sys.stdout.write(resolve_document.explained_text(target, *explained[0]))


def _report_missing_op_types(plan: Plan, op_types: Sequence[str]) -> None:
    """Write each op type of a filter that no node of the model has to standard error, with the nearest ones."""
    if not op_types:
        return
    known = {name for node in plan.nodes for name in (node.op_type, operator_name(node.domain, node.op_type))}
    for op_type in op_types:
        if op_type not in known:
            suggestion = did_you_mean(op_type, known)
            sys.stderr.write(f"no node is a {op_type}{': ' + suggestion if suggestion else ''}\n")


def _matches(node: Decision, filters: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a node has one value of each filter that has values."""
    values = {"op": (node.op_type, operator_name(node.domain, node.op_type)), "list": (node.list,)}
    values["precision"] = (node.precision,)
    # A reason ends with the number of its rule: "... (S4.6)", "... (keep.cfg:1:1; S4.2)".
    values["rule"] = (node.rule, *(rule for rule in filters["rule"] if node.reason.endswith(f"{rule})")))
    values["scope"] = tuple(path for path in filters["scope"] if fnmatchcase(str(node.ref), f"{path}*"))
    return all(not filters[name] or not set(values[name]).isdisjoint(filters[name]) for name in filters)
