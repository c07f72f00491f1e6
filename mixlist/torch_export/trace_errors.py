"""Describe what torch cannot trace: the operator, its module, and the line of the user's code."""

from __future__ import annotations

import re
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from mixlist.errors import ModelError

if TYPE_CHECKING:
    from torch.fx import Node

# The errors that torch raises if Python code needs the value of a tensor: a branch, a size, a boolean index.
VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
# The errors that torch raises for what it cannot trace.
TORCH_ERRORS = (RuntimeError, TypeError, ValueError, AssertionError, IndexError)
_STACK_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def is_raised_by_torch(error: BaseException) -> bool:
    """Return whether the code that raised an error is a file of torch."""
    return "/torch/" in extract_tb(error.__traceback__)[-1].filename


def describe_module(node: Node) -> str:
    """Return the module that a node comes from, as words for messages."""
    # ``_set_module_path`` has written this entry.
    name = node.meta.get("nn_module_stack", {}).get("scope", ("", ""))[0]
    return f"module {name!r}" if name else "the model"


def _describe_user_line(error: BaseException) -> str:
    """Return the line of the user's code that led to an error, as the end of a sentence; "" if it is not known."""
    # The user's code is the innermost frame outside of torch, of this package, and of generated code ("<string>").
    frames = [frame for frame in extract_tb(error.__traceback__) if _is_user_file(frame.filename)]
    if not frames:
        return ""
    frame = frames[-1]
    return f" ({Path(frame.filename).name}:{frame.lineno}: {frame.line})"


def _is_user_file(path: str) -> bool:
    """Return whether a file of a stack trace is neither of torch nor of this package, nor generated code."""
    return "/torch/" not in path and not path.startswith("<") and Path(path).parent != Path(__file__).parent


def describe_line(node: Node) -> str:
    """Return the line of the user's code that calls a node's operator, as the end of a sentence; "" if not known."""
    # The stack trace has the form of Python's, innermost frame last.
    frames = _STACK_FRAME.findall(node.meta.get("stack_trace") or "")
    lines = [f" ({Path(path).name}:{number})" for path, number in frames if _is_user_file(path)]
    return lines[-1] if lines else ""


def describe_torch_error(error: BaseException) -> ModelError:
    """Return a ModelError for an error of torch: its first line, and the line of the user's code."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ModelError(
        f"torch cannot trace the step: {reason}{_describe_user_line(error)}",
        hint="correct this line if the module does not run either; else write it with other operators",
    )


def describe_value_error(error: BaseException) -> ModelError:
    """Return a ModelError with the line of the user's code that needs the value of a tensor."""
    return ModelError(
        f"the step depends on the value of a tensor{_describe_user_line(error)}",
        hint="a graph has no Python branches on values: use torch.where, or a mask instead of a boolean index",
    )
