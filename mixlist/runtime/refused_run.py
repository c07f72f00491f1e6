"""Recognize a run that ONNX Runtime refuses: a node cannot work on the values of its inputs.

ONNX Runtime names the node in the message of such an error. An error without a node (an input of another shape) is not
a refused run. An error about missing memory is not one either, because it depends on the machine and not on the model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mixlist.errors import ModelError

# ONNX Runtime writes: ... returned while running Reshape node. Name:'r' Status Message: ...
_NODE_ERROR = re.compile(r"(?P<op_type>\S+) node\. Name:'(?P<node>.*?)' Status Message: (?P<problem>.*)")
_MEMORY_WORDS = ("alloc", "out of memory")


@dataclass(frozen=True)
class Refusal:
    """The node that refused a run, and the reason.

    node: the name of the node in the model that ran; "" if it has none.
    op_type: the operator of the node.
    problem: ONNX Runtime's message.
    """

    node: str
    op_type: str
    problem: str

    def __str__(self) -> str:
        place = f"{self.node} ({self.op_type})" if self.node else f"a node {self.op_type} without a name"
        return f"at {place}: {self.problem}"


class RunRefused(ModelError):  # noqa: N818 - it names the event
    """ONNX Runtime stopped a run at a node (``refusal``)."""

    def __init__(self, message: str, refusal: Refusal | None = None) -> None:
        # Unpickling calls this with the message only, and then restores the attributes.
        super().__init__(message)
        self.refusal = refusal or Refusal("", "", message)


def parse_refusal(message: str) -> Refusal | None:
    """Return the refusal that the first line of an error of ONNX Runtime describes; None for another error.

    The innermost node counts. An If repeats the message of the node in its branch:
    ``... returned while running If node. Name:'i' ... returned while running Reshape node. Name:'r' ...``
    """
    # Without the marker, ONNX Runtime did not name a node: the run as a whole failed.
    _, marker, innermost = message.rpartition("returned while running ")
    match = _NODE_ERROR.match(innermost) if marker else None
    if match is None or any(word in match["problem"].lower() for word in _MEMORY_WORDS):
        return None
    return Refusal(match["node"], match["op_type"], match["problem"].strip() or "no reason given")
