"""Make ONNX Runtime's ``InferenceSession`` of a model: ``make_session`` of a ModelProto, ``open_session`` of a file.

Sessions log nothing; an error comes as a ModelError with the first line of ONNX Runtime's message. Threads sleep
between runs: a check runs two sessions in turn, and a session whose threads stay awake for a while, which is ONNX
Runtime's habit, would slow the other down (by half, measured on two cores).
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
from mixlist.runtime.refused_run import RunRefused, read_refusal
from mixlist.runtime.session import DEFAULT_OPTIONS, SessionOptions
from mixlist.targets.providers import PROVIDERS, available_providers

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession
    from onnxruntime import SessionOptions as Settings

_DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # of a model that is given as bytes
_OPTIMIZED_DATA = "session.optimized_model_external_initializers_file_name"

_threads_are_shared = False


def make_session(
    proto: ModelProto, options: SessionOptions = DEFAULT_OPTIONS, *, folder: Path | None = None
) -> InferenceSession:
    """Make a session of a ModelProto of any size; ``folder`` is where its external data lies.

    A model that cannot be given as bytes (see ``model_files``) is written to a temporary folder. The folder is removed
    once ONNX Runtime has mapped the weights, on Windows with the session. Raises what ``open_session`` does.
    """
    if not outgrows_protobuf(proto) and is_readable_in_place(proto, folder):
        return open_session(proto.SerializeToString(), options, folder=folder)
    with ExitStack() as stack:
        home = stack.enter_context(ScratchFolder())
        session = open_session(write_model(proto, home, folder), options)
        if os.name == "nt":  # Windows does not remove a mapped file
            weakref.finalize(session, stack.pop_all().close)
    return session


def open_session(
    model: bytes | str | os.PathLike[str], options: SessionOptions = DEFAULT_OPTIONS, *, folder: Path | None = None
) -> InferenceSession:
    """Make a session of a model file, or of a serialized model whose external data lies in ``folder``.

    Raises UsageError where the provider is missing and ModelError where ONNX Runtime refuses the model.
    """
    import onnxruntime

    provider = options.provider
    if provider not in available_providers():
        raise _no_provider(provider, "the installed onnxruntime has no such provider")
    settings = _settings(options)
    if folder is not None:
        settings.add_session_config_entry(_DATA_FOLDER, os.fspath(folder.resolve()))
    chosen: list[str | tuple[str, dict[str, str]]] = [PROVIDERS["cpu"]]
    if provider == "cuda":
        with redirect_stdout(sys.stderr):  # it prints which libraries it does not find
            onnxruntime.preload_dlls()  # CUDA's libraries where they were installed as Python packages
        chosen.insert(0, (PROVIDERS["cuda"], {"use_tf32": str(int(options.tf32))}))
    with runtime_errors("load the model"):
        session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else os.fspath(model), settings, providers=chosen, enable_fallback=0
        )
    if PROVIDERS[provider] not in session.get_providers():
        raise _no_provider(provider, "ONNX Runtime could not start it (CUDA's or cuDNN's libraries, or the driver)")
    session._model_bytes = None  # kept for falling back to other providers only, which is off: as large as the model
    return session


def _settings(options: SessionOptions) -> Settings:
    """Translate the options to ONNX Runtime's own."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # the exceptions tell what failed
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    if _threads_are_shared:
        settings.use_per_session_threads = False
    else:
        settings.intra_op_num_threads = options.threads or 0
    levels = onnxruntime.GraphOptimizationLevel
    best = levels.ORT_ENABLE_EXTENDED if options.lean else levels.ORT_ENABLE_ALL
    settings.graph_optimization_level = best if options.optimize else levels.ORT_DISABLE_ALL
    if options.profile is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = os.fspath(options.profile)
    if options.optimized_model is not None:
        settings.optimized_model_filepath = os.fspath(options.optimized_model)
        settings.add_session_config_entry(_OPTIMIZED_DATA, f"{options.optimized_model.name}.data")
    if options.lean:
        settings.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        settings.enable_mem_pattern = settings.enable_mem_reuse = options.reuse_memory
        _share_memory()
        settings.add_session_config_entry("session.use_env_allocators", "1")
    return settings


def share_threads(count: int) -> None:
    """Let all sessions of this process use one pool of ``count`` threads from now on.

    A graph in many pieces is faster so: up to a quarter (measured on eight models, of which most gain little).
    Raises RuntimeError where the pool exists already.
    """
    global _threads_are_shared
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes(count, 1)
    _threads_are_shared = True  # from now on ONNX Runtime refuses sessions with threads of their own


@cache
def _share_memory() -> None:
    """Register one pool of host memory for all lean sessions: while one of a check's two runs, the other's is free."""
    import onnxruntime

    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    host = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    no_more_than_asked = {"arena_extend_strategy": 1}
    onnxruntime.create_and_register_allocator(host, onnxruntime.OrtArenaCfg(no_more_than_asked))


def _no_provider(provider: str, reason: str) -> UsageError:
    if provider not in PROVIDERS:
        return UsageError(f"{provider!r} is no provider", hint=f"it is one of {', '.join(PROVIDERS)}")
    return UsageError(
        f"the provider {provider} cannot be used: {reason}",
        hint="onnxruntime and onnxruntime-gpu are one module, so one replaces the other:"
        " pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'",
    )


@contextmanager
def runtime_errors(action: str) -> Iterator[None]:
    """Turn errors of ONNX Runtime into ModelError: it has no base class for them and raises RuntimeError, ValueError.

    ``action`` says what was attempted: "load the model". An operator that refuses its input raises RunRefused.
    """
    try:
        yield
    except (MixlistError, MemoryError):
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        message, refusal = f"ONNX Runtime cannot {action}: {lines[0]}", read_refusal(lines[0])
        raise (RunRefused(message, refusal) if refusal is not None else ModelError(message)) from error
