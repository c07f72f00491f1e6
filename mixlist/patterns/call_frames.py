"""Follow a constant through calls of functions: to the argument of a call, and to the result of a function's body.

A Graph is the body of a function for all calls of one kind (``graph.model.Graph`` says which calls are of one kind).
The values of its parameters depend on the call, so a constant of a body has a value only together with a CallFrame,
which holds the constant arguments of one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mixlist.graph.model import Graph, Node, Value

# The most frames of one model. ``CallFrames.scaled_limit`` raises this limit for a model with many calls.
MOST_FRAMES = 20_000


@dataclass(frozen=True, eq=False)
class CallFrame:
    """The constant arguments of a call, by the parameter of the function's body.

    Two calls with the same constant arguments have one frame.
    """

    function: Graph
    arguments: Mapping[Value, FrameValue]


class FrameValue(NamedTuple):
    """A value in one call of its function; ``frame`` is None in the main graph, and if the call is unknown."""

    value: Value
    frame: CallFrame | None


class CallFrames:
    """The frames of a model's calls; each is made when it is first asked for.

    Functions that call each other with different constants can have a number of frames that grows exponentially with
    the size of the file. Beyond ``MOST_FRAMES`` the arguments of a call count as unknown.
    """

    def __init__(self) -> None:
        self._calls: set[Node] = set()
        self._by_call: dict[tuple[Node, CallFrame | None], CallFrame] = {}
        self._by_arguments: dict[tuple[Graph, tuple[FrameValue, ...]], CallFrame] = {}
        self._call_dependent: dict[Graph, set[Value]] = {}  # by function: the values that depend on its arguments

    def scaled_limit(self, minimum: int) -> int:
        """Return the larger of ``minimum`` and ten times the number of calls that have a frame.

        This limit grows with the file, so that a large number of calls alone does not exceed it.
        """
        return max(minimum, 10 * len(self._calls))

    def frame_of(self, call: Node, frame: CallFrame | None) -> CallFrame:
        """Return the frame of a call; ``frame`` is the frame of the caller, None if the main graph calls."""
        # A call in a function that is called twice has two frames, because its arguments may come from the caller.
        call_frame = self._by_call.get((call, frame))
        if call_frame is None:
            call_frame = self._by_call[call, frame] = self._make_frame(call, frame)
        return call_frame

    def _make_frame(self, call: Node, frame: CallFrame | None) -> CallFrame:
        """Return the frame of a call that has none yet; calls with equal constant arguments share one."""
        assert call.function is not None
        pairs = zip(call.function.root.inputs, call.inputs, strict=False)
        arguments = {
            parameter: self._argument(value, frame)
            for parameter, value in pairs
            if value is not None and value.is_constant
        }
        # The parameters need not be in the key: calls of one Graph have constants at the same parameters.
        key = call.function, (*arguments.values(),)
        self._calls.add(call)
        if key not in self._by_arguments and len(self._by_arguments) >= self.scaled_limit(MOST_FRAMES):
            # Too many frames: each parameter becomes its own argument. A parameter has no producer, so its elements
            # count as unknown.
            arguments = {parameter: FrameValue(parameter, None) for parameter in arguments}
            key = call.function, (*arguments.values(),)
        return self._by_arguments.setdefault(key, CallFrame(call.function, arguments))

    def _argument(self, value: Value, frame: CallFrame | None) -> FrameValue:
        """Return an argument of a call; a parameter of the caller is replaced by the caller's own argument."""
        if frame is not None and value in frame.arguments:
            return frame.arguments[value]
        return self._attach_frame(value, frame)

    def find_source(self, value: Value, frame: CallFrame | None) -> FrameValue:
        """Return the value that has the same elements and is neither a parameter nor the result of a call."""
        while True:
            call = value.producer
            if frame is not None and value in frame.arguments:  # a parameter: go on with the argument
                value, frame = frame.arguments[value]  # the frame of the caller that passed it
            # A call in a damaged model may have more results than its function.
            elif call is not None and call.function is not None and value.output_slot < len(call.function.root.outputs):
                # The result of a call: go on with the output of the body.
                value, frame = call.function.root.outputs[value.output_slot], self.frame_of(call, frame)
            else:
                return self._attach_frame(value, frame)

    def depends_on_call(self, value: Value, frame: CallFrame | None) -> bool:
        """Return whether the value of a constant depends on the arguments of the call."""
        return frame is not None and value in self._call_dependent_values(frame.function)

    def _attach_frame(self, value: Value, frame: CallFrame | None) -> FrameValue:
        """Return a FrameValue of a value in a frame.

        A value that is the same in all calls gets a frame without arguments, so that it is computed once.
        """
        if frame is None or not frame.arguments or self.depends_on_call(value, frame):
            return FrameValue(value, frame)
        without_arguments = self._by_arguments.setdefault((frame.function, ()), CallFrame(frame.function, {}))
        return FrameValue(value, without_arguments)

    def _call_dependent_values(self, body: Graph) -> set[Value]:
        """Return the values of a body that depend on its parameters."""
        dependent = self._call_dependent.get(body)
        if dependent is None:
            dependent = self._call_dependent[body] = set(body.root.inputs)
            # Values that a body of control flow captures do not count: the results of If, Loop and Scan are never
            # evaluated.
            for node in body.nodes:
                if any(value in dependent for value in node.inputs):
                    dependent.update(value for value in node.outputs if value is not None)
        return dependent
