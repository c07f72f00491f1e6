"""Follow a constant through the borders of functions: to the argument of a call, and to the result of a body.

A Graph is the body of a function for all calls of one kind. The values of its parameters depend on the call, so a
constant of a body has a value only together with a CallFrame, which holds the constant arguments of one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mixlist.graph.model import Graph, Node, Value

MOST_FRAMES = 20_000  # of one model; or ten for each of its calls, if these are more


@dataclass(frozen=True, eq=False)
class CallFrame:
    """The constant arguments of a call, by the parameter of the function's body.

    Two calls with the same constant arguments have one frame.
    """

    function: Graph
    arguments: Mapping[Value, FrameValue]


class FrameValue(NamedTuple):
    """A value in one call of its function; ``frame`` is None in the main graph, and where no call is known."""

    value: Value
    frame: CallFrame | None


class CallFrames:
    """Makes the frames of a model's calls.

    Functions that call each other with different constants can have a number of frames that grows exponentially with
    the size of the file. Beyond ``MOST_FRAMES`` the arguments of a call count as unknown.
    """

    def __init__(self) -> None:
        self._calls: set[Node] = set()
        self._by_call: dict[tuple[Node, CallFrame | None], CallFrame] = {}
        self._by_arguments: dict[tuple[Graph, tuple[FrameValue, ...]], CallFrame] = {}
        self._varying: dict[Graph, set[Value]] = {}

    def limit(self, least: int) -> int:
        """Return ``least``, or ten for each call that was entered, if these are more."""
        return max(least, 10 * len(self._calls))

    def frame_of(self, call: Node, frame: CallFrame | None) -> CallFrame:
        """Return the frame of a call; ``frame`` is that of the body which holds the call."""
        known = self._by_call.get((call, frame))
        if known is None:
            known = self._by_call[call, frame] = self._make(call, frame)
        return known

    def _make(self, call: Node, frame: CallFrame | None) -> CallFrame:
        assert call.function is not None
        pairs = zip(call.function.root.inputs, call.inputs, strict=False)
        arguments = {p: self._argument(v, frame) for p, v in pairs if v is not None and v.is_constant}
        key = call.function, (*arguments.values(),)  # the Graph of a body says which arguments are constants
        self._calls.add(call)
        if key not in self._by_arguments and len(self._by_arguments) >= self.limit(MOST_FRAMES):
            arguments = {parameter: FrameValue(parameter, None) for parameter in arguments}
            key = call.function, (*arguments.values(),)
        return self._by_arguments.setdefault(key, CallFrame(call.function, arguments))

    def _argument(self, value: Value, frame: CallFrame | None) -> FrameValue:
        """Return an argument of a call; a parameter of the caller is replaced by the caller's own argument."""
        if frame is not None and value in frame.arguments:
            return frame.arguments[value]
        return self._at(value, frame)

    def find_source(self, value: Value, frame: CallFrame | None) -> FrameValue:
        """Return the value that is no parameter and no result of a call, but has the same elements."""
        while True:
            call = value.producer
            if frame is not None and value in frame.arguments:
                value, frame = frame.arguments[value]
            elif call is not None and call.function is not None and value.output_slot < len(call.function.root.outputs):
                value, frame = call.function.root.outputs[value.output_slot], self.frame_of(call, frame)
            else:
                return self._at(value, frame)

    def depends_on_call(self, value: Value, frame: CallFrame | None) -> bool:
        """Return whether the value of a constant depends on the arguments of the call."""
        return frame is not None and value in self._varying_in(frame.function)

    def _at(self, value: Value, frame: CallFrame | None) -> FrameValue:
        """Return the value in its frame; a value that is the same in all calls has one frame without arguments."""
        if frame is None or not frame.arguments or self.depends_on_call(value, frame):
            return FrameValue(value, frame)
        empty = self._by_arguments.setdefault((frame.function, ()), CallFrame(frame.function, {}))
        return FrameValue(value, empty)

    def _varying_in(self, body: Graph) -> set[Value]:
        known = self._varying.get(body)
        if known is None:
            known = self._varying[body] = set(body.root.inputs)
            for node in body.nodes:  # not the captures of bodies: the results of control flow are not computed
                if any(value in known for value in node.inputs):
                    known.update(value for value in node.outputs if value is not None)
        return known
