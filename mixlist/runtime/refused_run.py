"""Tell a run that ONNX Runtime refuses from every other error: an operator does not take the values that it reads.

ONNX Runtime names the operator in its message. An error without a name (an input of another shape) is no refused run,
and neither is missing memory, which says something about the machine and nothing about the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mixlist.errors import ModelError

_AT_NODE = re.compile(r"(?P<op_type>\S+) node\. Name:'(?P<node>.*?)' Status Message: (?P<problem>.*)")
_MEMORY = ("alloc", "out of memory")


@dataclass(frozen=True)
class Refusal:
    """Say where a run was refused and why.

    ``node``: its name in the model that ran, "" where it has none. ``problem``: the words of ONNX Runtime.
    """

    node: str
    op_type: str
    problem: str

    def __str__(self) -> str:
        where = f"{self.node} ({self.op_type})" if self.node else f"a node {self.op_type} without a name"
        return f"at {where}: {self.problem}"


class RunRefused(ModelError):  # noqa: N818 - it names the event
    """ONNX Runtime refused to go on with a run at a node (``refusal``)."""

    def __init__(self, message: str, refusal: Refusal | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal or Refusal("", "", message)


def parse_refusal(message: str) -> Refusal | None:
    """Return what the first line of an error of ONNX Runtime says of a refused run; None for another error.

    The innermost node counts: an If passes on the message of the node in its branch.
    """
    _, found, innermost = message.rpartition("returned while running ")
    match = _AT_NODE.match(innermost) if found else None
    if match is None or any(word in match["problem"].lower() for word in _MEMORY):
        return None
    return Refusal(match["node"], match["op_type"], match["problem"].strip() or "no reason given")
