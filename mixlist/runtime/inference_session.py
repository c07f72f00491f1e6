"""Create ONNX Runtime's ``InferenceSession``: ``make_session`` from a ModelProto, ``open_session`` from a file.

Sessions log nothing. An error of ONNX Runtime becomes a ModelError with the first line of its message. Threads sleep
between runs. By default they spin for a while after a run. A check runs two sessions in turn, and the spinning threads
of one session made the other one half as fast (measured on two cores).
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.errors import MixlistError, ModelError, UsageError
from mixlist.files.scratch_folder import ScratchFolder
from mixlist.runtime.model_files import is_readable_in_place, outgrows_protobuf, write_model
from mixlist.runtime.refused_run import RunRefused, parse_refusal
from mixlist.runtime.session import DEFAULT_OPTIONS, SessionOptions
from mixlist.targets.providers import PROVIDERS, available_providers

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession
    from onnxruntime import SessionOptions as OrtSessionOptions

# Keys of ONNX Runtime's session configuration: the folder of the external data of a model that is passed as bytes, and
# the file name of the weights of the optimized model. The third key keeps weights in the layout of the file.
_DATA_FOLDER_KEY = "session.model_external_initializers_file_folder_path"
_NO_PREPACKING_KEY = "session.disable_prepacking"
_OPTIMIZED_DATA_KEY = "session.optimized_model_external_initializers_file_name"

_threads_are_shared = False
_default_threads = 0  # of a session whose options name no number; 0: as ONNX Runtime decides


def make_session(
    proto: ModelProto, options: SessionOptions = DEFAULT_OPTIONS, *, folder: Path | None = None
) -> InferenceSession:
    """Return a session of a ModelProto of any size. Its external data is in ``folder``.

    A model that ONNX Runtime cannot read as bytes (see ``model_files``) is written to a temporary folder. The folder is
    removed as soon as ONNX Runtime has mapped the weights. On Windows the folder is removed when the session is
    garbage-collected. Raises the errors of ``open_session``.
    """
    # The usual case needs no file: ONNX Runtime reads the model as bytes, and its external data where it is.
    if not outgrows_protobuf(proto) and is_readable_in_place(proto, folder):
        return open_session(proto.SerializeToString(), options, folder=folder)
    with ExitStack() as stack:
        target_folder = stack.enter_context(ScratchFolder())
        session = open_session(write_model(proto, target_folder, folder), options)
        if os.name == "nt":  # Windows cannot remove a mapped file
            weakref.finalize(session, stack.pop_all().close)
    return session


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

    ort_options = _convert_options(options)
    if folder is not None:
        # ONNX Runtime does not know the folder of a model that it gets as bytes.
        ort_options.add_session_config_entry(_DATA_FOLDER_KEY, os.fspath(folder.resolve()))
    # The CPU provider comes last: it runs the nodes for which CUDA has no kernel.
    provider_list: list[str | tuple[str, dict[str, str]]] = [PROVIDERS["cpu"]]
    if provider == "cuda":
        with redirect_stdout(sys.stderr):  # preload_dlls prints the libraries that it does not find
            onnxruntime.preload_dlls()  # finds CUDA's libraries that were installed as Python packages
        provider_list.insert(0, (PROVIDERS["cuda"], {"use_tf32": str(int(options.tf32))}))
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


def _convert_options(options: SessionOptions) -> OrtSessionOptions:
    """Return ONNX Runtime's own options object."""
    import onnxruntime

    ort_options = onnxruntime.SessionOptions()
    ort_options.log_severity_level = 4  # fatal errors only: the exceptions carry the messages
    # Threads do not spin after a run (see the docstring of the module).
    ort_options.add_session_config_entry("session.force_spinning_stop", "1")
    # Threads: the pool of the process if there is one, else a pool of the session (0: ONNX Runtime's default).
    if _threads_are_shared:
        ort_options.use_per_session_threads = False
    else:
        ort_options.intra_op_num_threads = options.threads or _default_threads
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
        # All nodes have the same priority, so they run in the order of the file.
        ort_options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        # Both settings belong to the plan that ``SessionOptions.lean`` describes.
        ort_options.enable_mem_pattern = ort_options.enable_mem_reuse = options.reuse_memory
        _register_shared_arena()
        ort_options.add_session_config_entry("session.use_env_allocators", "1")
    return ort_options


def share_threads(count: int) -> None:
    """Let all later sessions of this process use one pool of ``count`` threads.

    Trials of tune split a graph into segments with one session each. With one pool they run up to a quarter faster
    (measured on eight models, of which most gain little). Before version 1.23, ONNX Runtime has no such pool in Python:
    every session gets ``count`` threads of its own. Raises RuntimeError if the pool exists already.
    """
    global _default_threads, _threads_are_shared
    import onnxruntime

    if not hasattr(onnxruntime, "set_global_thread_pool_sizes"):
        _default_threads = count
        return
    onnxruntime.set_global_thread_pool_sizes(count, 1)
    # Once this pool exists, ONNX Runtime refuses to create a session with threads of its own.
    _threads_are_shared = True


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
