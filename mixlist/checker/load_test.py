"""Load a float16 model once as its user will, with all optimizations of ONNX Runtime: it can crash on a valid model.

The check itself does not show this: it runs an emulation with other optimizations. The model is loaded in the process
of the sessions, which may die.
"""

from __future__ import annotations

from dataclasses import replace

from mixlist.checker.emulation import has_low_types
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import ModelError
from mixlist.model.load import LoadedModel
from mixlist.run.executors import open_process
from mixlist.run.remote_session import RemoteSession
from mixlist.run.segments import weight_bytes
from mixlist.worker_processes import WorkerDied
from mixlist.write.result import RewriteResult

_MOST_BYTES = 2**29  # of weights in float32: the load of a larger model takes long, and much memory


def find_load_crash(loaded: LoadedModel) -> list[Diagnostic]:
    """Return a warning if ONNX Runtime's CPU provider dies while it loads a model with low types; [] otherwise.

    A large model is not loaded, and one that ONNX Runtime refuses is no crash.
    """
    if not has_low_types(loaded.proto) or weight_bytes(loaded) > _MOST_BYTES:
        return []
    try:
        with open_process() as workers:
            workers = replace(workers, reports_crashes=False)  # else a copy of the model would be kept
            RemoteSession(loaded.proto, workers=workers, folder=loaded.folder).close()
            return []
    except WorkerDied as death:
        message = f"ONNX Runtime's CPU provider dies with {death.signal} while it loads {loaded.name}"
        hint = "graph_optimization_level ORT_ENABLE_EXTENDED, another provider or another version may load it"
        return [warning("ML614", message, hint=hint)]
    except ModelError:
        return []


def find_crash_of_result(rewritten: RewriteResult) -> list[Diagnostic]:
    """Return what ``find_load_crash`` finds for a model that was not written yet."""
    if weight_bytes(rewritten.loaded) > _MOST_BYTES:  # ``rewritten.model`` holds all weights
        return []
    return find_load_crash(LoadedModel(rewritten.model, "the written model", None, None))
