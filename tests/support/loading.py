"""Loading models in ONNX Runtime in a process that may die: some float16 recurrent models crash its CPU provider."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

import onnx

WORKER = """
import sys
import onnxruntime as ort
ort.set_default_logger_severity(4)
options = ort.SessionOptions()
options.intra_op_num_threads = 1
for line in sys.stdin:
    try:
        ort.InferenceSession(line.strip(), options, providers=["CPUExecutionProvider"])
        print("ok", flush=True)
    except Exception as error:
        print("refused " + " ".join(str(error).split()), flush=True)
"""


class Loader:
    """Asks a worker process whether models load; starts a new one where a model kills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def load(self, model: onnx.ModelProto) -> str:
        """``ok``, ``refused ...`` or ``died``."""
        path = self.folder / "candidate.onnx"
        path.write_bytes(model.SerializeToString())
        worker = self._running()
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(f"{path}\n")
        worker.stdin.flush()
        answer = worker.stdout.readline().strip()
        if not answer:
            self._stop()
        return answer or "died"

    def _running(self) -> subprocess.Popen[str]:
        if self.worker is None:
            command = [sys.executable, "-c", WORKER]
            pipe = subprocess.PIPE
            self.worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        return self.worker

    def _stop(self) -> None:
        if self.worker is not None:
            self.worker.communicate()
            self.worker = None
