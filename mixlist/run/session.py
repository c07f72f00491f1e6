"""The protocol ``Session``, which every class that runs a model implements, and the options of all sessions.

``Session.run`` takes the names of outputs and a feed, and returns the values of the outputs. ``Session.start`` does the
same without waiting.
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
# Values of one batch by input name.
Feed: TypeAlias = "Mapping[str, Array]"
# Values of outputs, in the order of the requested names. A sequence is a list of arrays, and an empty optional None.
Outputs: TypeAlias = "list[Array]"


@dataclass(frozen=True)
class SessionOptions:
    """The options with which ONNX Runtime loads and runs a model, in this process or in another one.

    provider: ``cpu`` or ``cuda``.
    optimize: all graph optimizations, or none.
    threads: threads within an operator; None for ONNX Runtime's default.
    tf32: CUDA multiplies float32 matrices in TF32, which has the mantissa of float16. Off by default, because the
        reference of a check must be computed in full float32.
    cuda_graph: CUDA records the kernels of the first runs and replays them, without the time in which the host launches
        them. ONNX Runtime refuses models with control flow, or with nodes on the CPU. All runs need the same bindings.
    lean: keep as few tensors in memory as possible. This is for graphs in which every tensor has a probe:

        - Nodes run in the order of the file, so that a tensor is freed as soon as its probe has reduced it.
        - ONNX Runtime does not plan the reuse of memory before the first run. For 3,400 nodes the plan took 0.3 s,
          which is longer than the runs, because each tensor is compared with all tensors that are free at that time.
        - Threads do not spin between operators. Most are reductions that one thread computes. With spinning, a
          batch of a check took 1.4 to 1.7 times the CPU time (measured on two cores and four models).
        - Quantized models are not optimized: this changes last bits, which rounding to integers makes large.
        - Data layouts are not optimized. The nodes that this optimization adds would run last, and every tensor would
          stay in memory until then.

    reuse_memory: with ``lean``, plan the reuse of memory as without ``lean``. Runs of small graphs become up to a sixth
        faster (measured on nine graphs).
    prepack: let ONNX Runtime copy weights into the layout of its kernels when it loads a model. This makes runs faster.
        Without it, weights stay mapped from their file, and the last bits of products differ.
    profile: path prefix of the file of ONNX Runtime's profile; None for no profile.
    optimized_model: path to which the optimized graph is written, with its weights in a file next to it; or None.
    """

    provider: str = "cpu"
    optimize: bool = True
    threads: int | None = None
    tf32: bool = False
    cuda_graph: bool = False
    lean: bool = False
    reuse_memory: bool = False
    prepack: bool = True
    profile: Path | None = None
    optimized_model: Path | None = None


DEFAULT_OPTIONS = SessionOptions()


class Session(Protocol):
    """A loaded model that can be run; a context manager that closes it.

    bfloat16 arrays have the dtype of ml_dtypes, in feeds and in outputs. A run raises ModelError if ONNX Runtime
    refuses the model or its input, and WorkerDied if the process that runs it dies.
    """

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Start a run, and return a function that waits for it and returns the values of the outputs.

        output_names: None for all outputs, in the order of the model. A session in another process runs the model while
        this process continues.
        """

    def close(self) -> None:
        """Release the session and its temporary files."""

    def run(self, output_names: Sequence[str] | None, feed: Feed) -> Outputs:
        """Run the model, and return the values of the outputs (see ``start``)."""
        return self.start(output_names, feed)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
