"""The one interface of everything that runs a model: the ``Session`` protocol, and the options that all sessions share.

A run goes through ``start`` (or ``run``, which waits): it takes the outputs' names and a feed and gives their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.generic]"
Feed: TypeAlias = "Mapping[str, Array]"  # by input name; a sequence is a list of arrays, a missing optional None
Outputs: TypeAlias = "list[Array]"  # in the order asked for, of the same kinds


@dataclass(frozen=True)
class SessionOptions:
    """The options with which ONNX Runtime loads and runs a model, in this process or in another one.

    provider: ``cpu`` or ``cuda``.
    optimize: all graph optimizations, or none.
    threads: within an operator; None for ONNX Runtime's choice. Ignored after ``share_threads``.
    tf32: CUDA multiplies float32 in TF32, with the mantissa of float16. Off by default, because a reference in float32
        would lose what makes it the reference.
    lean: for a graph of which every tensor is reduced. Nodes run in the order of the file, so that a tensor is freed as
        soon as it was reduced, and memory is given back instead of planned. (The plan would take longer than the runs:
        0.3 s for a graph of 3,400 nodes, since ONNX Runtime looks for tensors of the same size among all that are
        free.) Layouts stay as they are: the nodes that change a layout are new, come last in that order, and would keep
        every tensor until then.
    reuse_memory: plan memory for a lean graph too. Runs of small ones become up to a sixth faster (measured on nine).
    profile: prefix of the file of ONNX Runtime's profile; None for no profile.
    optimized_model: where the optimized graph is written, with its weights in a file next to it; None for nowhere.
    """

    provider: str = "cpu"
    optimize: bool = True
    threads: int | None = None
    tf32: bool = False
    lean: bool = False
    reuse_memory: bool = False
    profile: Path | None = None
    optimized_model: Path | None = None


DEFAULT_OPTIONS = SessionOptions()


class Session(Protocol):
    """A model that is loaded somewhere and can be run. A context manager that closes it.

    bfloat16 arrays are those of ml_dtypes, in feeds and in outputs. Runs raise ModelError where ONNX Runtime refuses
    the model or its input, and WorkerDied where the process that runs it dies.
    """

    def start(self, outputs: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Begin a run, which goes on meanwhile where the session is in another process.

        ``outputs``: names, None for all in the model's order. Returns a function that waits for the run and returns
        the values.
        """

    def close(self) -> None:
        """Release the session and its temporary files."""

    def run(self, outputs: Sequence[str] | None, feed: Feed) -> Outputs:
        """Run the model and return the values of ``outputs`` (see ``start``)."""
        return self.start(outputs, feed)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
