"""The limits of functions and parameter lists (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mixlist"
FUNCTION_LINES, PARAMETERS = 60, 10
# These have a parameter for each option: callbacks of click, and the Python forms of commands.
MANY_PARAMETERS = {"command", "check", "tune", "train"}
LONG_FUNCTIONS = {"command"}  # the callbacks hold the text of --help


def too_long() -> Iterator[str]:
    """Yield a line about each function or parameter list that exceeds its limit."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text, name = path.read_text("utf-8"), path.relative_to(PACKAGE.parent)
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
            if length > FUNCTION_LINES and node.name not in LONG_FUNCTIONS:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines"
            if count > PARAMETERS and node.name not in MANY_PARAMETERS:
                yield f"{name}:{node.lineno}: {node.name} has {count} parameters"


def test_no_function_or_parameter_list_is_too_long() -> None:
    too_long_parts = list(too_long())
    assert not too_long_parts, "\n".join(too_long_parts)
