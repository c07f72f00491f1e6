"""The process that holds sessions for ``isolated.Worker``: it loads models and answers runs until its input ends.

A request is ``("load", number of the session, path, options of open_session)``, ``("drop", number)`` or the name of a
method of ``Runner`` (with the option ``timed``, of ``Stopwatch``), the number and its arguments, ``("run", number,
output names or None, feed)``; the answer ``("done", value)``, ``("error", class in mixlist.errors, message, hint)`` or
``("bug", traceback)``.
"""

from __future__ import annotations

import os
import signal
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from mixlist.errors import MixlistError
from mixlist.runtime import pipe_protocol
from mixlist.runtime.sessions import Runner, open_session


def serve() -> None:
    """Answer the requests on standard input; never returns."""
    requests, answers = be_quiet()
    with suppress(ImportError):  # told when a model is loaded
        import onnxruntime  # noqa: F401  while the parent prepares the model
    runners: dict[int, Runner] = {}
    while True:
        try:
            stage, number, *request = pipe_protocol.receive(requests)
            if stage == "load":
                told = answer(_open, *request)
                if told[0] == "done":
                    runners[number], told = told[1], ("done", told[1].names)
            elif stage == "drop":
                told = answer(runners.pop, number, None)[0], None
            else:
                told = answer(getattr(runners[number], stage), *request)
            pipe_protocol.send(answers, told)
        except (EOFError, OSError):  # the parent is gone
            os._exit(0)


def be_quiet() -> tuple[IO[bytes], IO[bytes]]:
    """Leave Ctrl-C to the parent, dump no core; the streams of requests and answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the whole group
    _dump_no_core()
    requests = os.fdopen(0, "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not get among the answers
    return requests, answers


def _open(path: str, options: dict[str, Any]) -> Runner:
    if options.pop("timed", False):
        from mixlist.runtime.stopwatch import Stopwatch

        return Stopwatch.open(path, options)
    if options.get("folder") is not None:  # ONNX Runtime looks there only for a model that is given as bytes
        return Runner(open_session(Path(path).read_bytes(), **options))
    return Runner(open_session(path, **options))


def answer(function: Any, *arguments: Any) -> tuple[Any, ...]:
    """The answer to a request that calls ``function``; ``isolated.value_of`` reads it."""
    try:
        return "done", function(*arguments)
    except MixlistError as error:
        return "error", type(error).__name__, error.message, error.hint
    except MemoryError:
        return "error", "ModelError", "not enough memory for this model and its data", None
    except Exception:
        return "bug", traceback.format_exc()


def _dump_no_core() -> None:
    """A crash here is expected: it must not leave gigabytes behind."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
