"""Write the course of a training for TensorBoard, with the writer of PyTorch.

Each training has a folder ``seed 0 mixed`` or ``seed 0 float32``, so that TensorBoard draws their losses together. The
mixed one also has the loss scale, the exceptions so far, and for each module the factor that is left to the largest
number of the low type, in the sampled steps.
"""

from __future__ import annotations

from pathlib import Path

from mixlist.errors import FileError
from mixlist.training.result import TrainReport


def make_folder(folder: str | Path) -> None:
    """Make the folder, before the trainings. Raises FileError if that is not possible."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError(f"cannot write for TensorBoard into {folder}: {problem.strerror}") from None


def write_tensorboard(report: TrainReport, folder: str | Path) -> None:
    """Write the trainings of a report into a folder. Raises FileError."""
    try:
        _write(report, folder)
    except OSError as problem:
        raise FileError(f"cannot write for TensorBoard into {folder}: {problem.strerror}") from None


def _write(report: TrainReport, folder: str | Path) -> None:
    import torch
    from torch.utils.tensorboard import SummaryWriter

    largest_number = torch.finfo(getattr(torch, report.precision)).max
    for run in report.runs:
        for name, history in (("mixed", run.mixed), ("float32", run.float32)):
            if not history.loss:
                continue
            with SummaryWriter(str(Path(folder) / f"seed {run.seed} {name}")) as writer:
                for step, loss in enumerate(history.loss):
                    writer.add_scalar("loss", loss, step)
                if name == "float32":
                    continue
                exceptions, so_far = set(history.exceptions), 0
                for step, scale in enumerate(history.scale):
                    so_far += step in exceptions
                    writer.add_scalar("loss scale", scale, step)
                    writer.add_scalar("exceptions", so_far, step)
                for step, values in history.largest.items():
                    for (module, is_gradient), value in values.items():
                        kind = "gradient" if is_gradient else "activation"
                        if value:
                            writer.add_scalar(f"headroom {kind}/{module}", largest_number / value, step)
