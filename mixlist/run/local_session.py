"""Run a model in this process: ``LocalSession`` calls ONNX Runtime and converts bfloat16 arrays.

``open_session`` creates ONNX Runtime's ``InferenceSession``. Sessions log nothing. An error of ONNX Runtime becomes a
ModelError with the first line of its message. If a node cannot work on the values of its inputs, the error is a
RunRefused that names the node.

By default the threads of a session spin for a while after each operator and after a run, and take cores from others. So
they sleep between runs. Those of a session with ``lean`` sleep in a run too, where most operators are too small for a
second thread.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mixlist.errors import MixlistError, ModelError, UsageError
from mixlist.run.session import DEFAULT_OPTIONS, Session, SessionOptions
from mixlist.targets.providers import PROVIDERS, available_providers

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue
    from onnxruntime import SessionOptions as OrtSessionOptions

    from mixlist.run.session import Array, Feed, Outputs

_BFLOAT16 = 16  # TensorProto.BFLOAT16
# Keys of ONNX Runtime's session configuration: the folder of the external data of a model that is passed as bytes, and
# the file name of the weights of the optimized model. The third key keeps weights in the layout of the file.
_DATA_FOLDER_KEY = "session.model_external_initializers_file_folder_path"
_NO_PREPACKING_KEY = "session.disable_prepacking"
_OPTIMIZED_DATA_KEY = "session.optimized_model_external_initializers_file_name"

# ONNX Runtime writes: ... returned while running Reshape node. Name:'r' Status Message: ...
_NODE_ERROR = re.compile(r"(?P<op_type>\S+) node\. Name:'(?P<node>.*?)' Status Message: (?P<problem>.*)")
_MEMORY_WORDS = ("alloc", "out of memory")


class LocalSession(Session):
    """A session in this process."""

    def __init__(self, session: InferenceSession) -> None:
        self._session: InferenceSession | None = session
        self.output_names = tuple(output.name for output in session.get_outputs())
        self._bfloat16_outputs = {o.name for o in session.get_outputs() if o.type == "tensor(bfloat16)"}

    @classmethod
    def open(cls, model: str | bytes, options: SessionOptions, folder: Path | None = None) -> Self:
        """Load a model file, or a serialized model.

        Its external data is in ``folder``; None means the folder of the file.
        """
        # ONNX Runtime reads external data from another folder only if the model is passed as bytes.
        if folder is not None and isinstance(model, str):
            model = Path(model).read_bytes()
        return cls(open_session(model, options, folder=folder))

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Prepare a run; the returned function executes it."""
        return partial(self.run, output_names, feed)

    def run(self, output_names: Sequence[str] | None, feed: Feed) -> Outputs:
        """Run the model. Raises ModelError."""
        session = self.inference_session
        names = list(self.output_names if output_names is None else output_names)
        with translate_runtime_errors("run the model"):
            inputs = {name: as_ort_value(array) if _is_bfloat16(array) else array for name, array in feed.items()}
            # Only bfloat16 outputs need a binding.
            if self._bfloat16_outputs.isdisjoint(names):
                return list(session.run(names, inputs))
            return self._run_with_binding(session, names, feed)

    def _run_with_binding(self, session: InferenceSession, output_names: Sequence[str], feed: Feed) -> Outputs:
        """Run with an IOBinding: ``InferenceSession.run`` cannot convert a bfloat16 output to numpy."""
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, as_ort_value(array))
        for name in output_names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        values = zip(output_names, binding.get_outputs(), strict=True)
        return [_bfloat16_array(value) if name in self._bfloat16_outputs else value.numpy() for name, value in values]

    def close(self) -> None:
        """Release ONNX Runtime's session."""
        self._session = None

    @property
    def inference_session(self) -> InferenceSession:
        """Return ONNX Runtime's session. Do not call this after ``close``."""
        assert self._session is not None, "used after close"
        return self._session


def _is_bfloat16(array: Array) -> bool:
    return array.dtype.name == "bfloat16"


def as_ort_value(array: Array) -> OrtValue:
    """Return an array as an OrtValue in host memory; the array may be bfloat16."""
    import numpy as np
    from onnxruntime import OrtValue

    if _is_bfloat16(array):
        # ONNX Runtime does not know the dtype of ml_dtypes: pass the bits as uint16, and the element type separately.
        return OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C").view(np.uint16), _BFLOAT16)
    return OrtValue.ortvalue_from_numpy(array)


def _bfloat16_array(value: OrtValue) -> Array:
    """Return a copy of a bfloat16 OrtValue in host memory. ``OrtValue.numpy`` refuses this element type."""
    import ctypes

    import ml_dtypes
    import numpy as np

    shape = value.shape()
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    # The copy is needed because the memory belongs to ``value``.
    array: Array = np.frombuffer(bits, np.uint16).copy().view(ml_dtypes.bfloat16).reshape(shape)
    return array


# --- ONNX Runtime's sessions ---


def open_session(
    model: bytes | str | os.PathLike[str], options: SessionOptions = DEFAULT_OPTIONS, *, folder: Path | None = None
) -> InferenceSession:
    """Return a session of a model file, or of a serialized model whose external data is in ``folder``.

    Raises UsageError if the provider is missing, and ModelError if ONNX Runtime refuses the model.
    """
    provider = options.provider
    if provider not in available_providers():
        raise _provider_error(provider, "the installed onnxruntime does not have it")
    import onnxruntime  # not before: ``available_providers`` reports that it is missing

    if options.lean and _is_quantized(model):
        options = replace(options, optimize=False)
    ort_options = _convert_options(options)
    if folder is not None:
        # ONNX Runtime does not know the folder of a model that it gets as bytes.
        ort_options.add_session_config_entry(_DATA_FOLDER_KEY, os.fspath(folder.resolve()))
    # The CPU provider comes last: it runs the nodes for which CUDA has no kernel.
    provider_list: list[str | tuple[str, dict[str, str]]] = [PROVIDERS["cpu"]]
    if provider == "cuda":
        with redirect_stdout(sys.stderr):  # preload_dlls prints the libraries that it does not find
            onnxruntime.preload_dlls()  # finds CUDA's libraries that were installed as Python packages
        settings = {"use_tf32": str(int(options.tf32)), "enable_cuda_graph": str(int(options.cuda_graph))}
        provider_list.insert(0, (PROVIDERS["cuda"], settings))
    with translate_runtime_errors("load the model"):
        session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else os.fspath(model),
            ort_options,
            providers=provider_list,
            # After an error, the Python class would load the model again with another provider.
            enable_fallback=0,
        )
    # ONNX Runtime drops a provider that does not start, and runs everything on the CPU without an error.
    if PROVIDERS[provider] not in session.get_providers():
        reason = "ONNX Runtime cannot start it (the libraries of CUDA or cuDNN, or the driver, are missing)"
        raise _provider_error(provider, reason)
    # The Python class keeps the serialized model to load it again for a fallback, which is off: free that memory.
    session._model_bytes = None
    return session


def _is_quantized(model: bytes | str | os.PathLike[str]) -> bool:
    """Return whether a model file, or a serialized model, has the name of an operator that quantizes."""
    if isinstance(model, bytes):
        return b"QuantizeLinear" in model
    with Path(model).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"QuantizeLinear") >= 0


def _convert_options(options: SessionOptions) -> OrtSessionOptions:
    """Return ONNX Runtime's own options object."""
    import onnxruntime

    ort_options = onnxruntime.SessionOptions()
    ort_options.log_severity_level = 4  # fatal errors only: the exceptions carry the messages
    # Threads do not spin after a run (see the docstring of the module).
    ort_options.add_session_config_entry("session.force_spinning_stop", "1")
    ort_options.intra_op_num_threads = options.threads or 0  # 0: as ONNX Runtime decides
    levels = onnxruntime.GraphOptimizationLevel
    # ORT_ENABLE_ALL adds the layout optimizations, which a session with ``lean`` must not have (see
    # ``SessionOptions``).
    enabled_level = levels.ORT_ENABLE_EXTENDED if options.lean else levels.ORT_ENABLE_ALL
    ort_options.graph_optimization_level = enabled_level if options.optimize else levels.ORT_DISABLE_ALL
    if not options.prepack:
        ort_options.add_session_config_entry(_NO_PREPACKING_KEY, "1")
    if options.profile is not None:
        ort_options.enable_profiling = True
        ort_options.profile_file_prefix = os.fspath(options.profile)
    if options.optimized_model is not None:
        ort_options.optimized_model_filepath = os.fspath(options.optimized_model)
        ort_options.add_session_config_entry(_OPTIMIZED_DATA_KEY, f"{options.optimized_model.name}.data")
    if options.lean:
        ort_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # All nodes have the same priority, so they run in the order of the file.
        ort_options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        # Both settings belong to the plan that ``SessionOptions.lean`` describes.
        ort_options.enable_mem_pattern = ort_options.enable_mem_reuse = options.reuse_memory
        _register_shared_arena()
        ort_options.add_session_config_entry("session.use_env_allocators", "1")
    return ort_options


@cache
def _register_shared_arena() -> None:
    """Register one arena of host memory for all sessions with ``lean``.

    The two sessions of a check run in turn, so each can use the memory that the other one has freed.
    """
    import onnxruntime

    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    host_memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    extend_by_requested_size = {"arena_extend_strategy": 1}  # the default extends it by powers of two
    onnxruntime.create_and_register_allocator(host_memory, onnxruntime.OrtArenaCfg(extend_by_requested_size))


def _provider_error(provider: str, reason: str) -> UsageError:
    """Return the error for a provider that cannot be used, or for a name that is no provider."""
    if provider not in PROVIDERS:
        return UsageError(f"unknown provider {provider!r}", hint=f"use one of {', '.join(PROVIDERS)}")
    return UsageError(
        f"the provider {provider} cannot be used: {reason}",
        hint="onnxruntime and onnxruntime-gpu install the same module, so the later one replaces the earlier one:"
        " pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'",
    )


@contextmanager
def translate_runtime_errors(action: str) -> Iterator[None]:
    """Turn the errors of ONNX Runtime inside the ``with`` into ModelError. ``action``: for example "load the model".

    ONNX Runtime's errors have no common base class; some are plain RuntimeError and ValueError. So every error except
    MixlistError and MemoryError is assumed to be one of ONNX Runtime. If a node refused its input, the error is a
    RunRefused.
    """
    try:
        yield
    except (MixlistError, MemoryError):
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        message, refusal = f"ONNX Runtime cannot {action}: {lines[0]}", parse_refusal(lines[0])
        raise (RunRefused(message, refusal) if refusal is not None else ModelError(message)) from error


# --- runs that ONNX Runtime refuses ---


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
