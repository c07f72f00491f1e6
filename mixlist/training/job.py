"""Hold what all trainings of one command share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.graph.save import content_digest
from mixlist.lists.policy import Policy
from mixlist.runtime.feeds import digest
from mixlist.training.dataset import Data
from mixlist.training.evaluation import Metric, evaluate
from mixlist.training.loop import Training
from mixlist.training.optimizers import Settings
from mixlist.training.options import TrainOptions
from mixlist.training.scalers import Scaler, described, make_scaler
from mixlist.training.step_session import StepSession
from mixlist.training.stepgraph import StepGraph

if TYPE_CHECKING:
    from mixlist.runtime.session import Array


@dataclass(frozen=True)
class Progress:
    """Where a training is, for those who are told. ``kind``: float32 or mixed."""

    seed: int
    kind: str
    step: int
    steps: int
    loss: float
    scale: float


@dataclass
class Job:
    """The trainings of one command. ``held``: the data to evaluate on; ``steps``: of each training.

    ``first_values``: those of ``init``, by name.
    """

    graph: StepGraph
    policy: Policy
    options: TrainOptions
    samples: Data
    held: Data
    metric: Metric
    steps: int
    first_values: dict[str, Array]

    @property
    def settings(self) -> Settings:
        """The optimizer."""
        return self.options.optimizer or Settings()

    def new_scaler(self, **changed: object) -> Scaler:
        """Return a scaler at its start; raises UsageError for parameters that it does not have."""
        return make_scaler(self.options.scaler, **{**(self.options.scaler_parameters or {}), **changed})

    def training(self, session: StepSession, seed: int, scaler: Scaler | None) -> Training:
        """Return a training at its start."""
        return Training(
            session,
            self.samples,
            self.settings,
            batch_size=self.options.batch_size,
            steps=self.steps,
            seed=seed,
            scaler=scaler,
            first_values=self.first_values,
            advance_on_skip=self.options.advance_on_skip,
        )

    def measure(self, training: Training, batches: int | None = None) -> float:
        """Return the metric of a training as it is now, over all evaluation data or the first ``batches``."""
        session, batch_size = training.session, self.options.batch_size
        return evaluate(session, training.values, self.held, self.metric, batch_size, batches)

    def key(self) -> dict[str, str]:
        """Return what the numbers of a training depend on."""
        import onnxruntime

        from mixlist.version import __version__

        options = self.options
        scaler = described(self.new_scaler())
        return {
            "step graph": content_digest(self.graph.loaded),
            "data": digest([self.samples.arrays, self.held.arrays]),
            "lists": self.policy.digest,
            "initial values": digest([self.first_values]),
            "options": f"{self.settings} {options.batch_size} {self.steps} {scaler} {options.advance_on_skip}"
            f" {options.provider} {options.threads} {self.metric}",
            "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
        }
