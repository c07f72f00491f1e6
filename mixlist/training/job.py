"""Hold what all trainings of one command share, and take each from its start, or its state, to its curve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.graph.save import content_digest
from mixlist.lists.policy import Policy
from mixlist.runtime.feeds import digest
from mixlist.training.checkpoint import StateFile
from mixlist.training.dataset import Data
from mixlist.training.evaluation import Metric, evaluate
from mixlist.training.gradient_underflow import UnderflowSampler
from mixlist.training.loop import Training, all_finite
from mixlist.training.optimizers import Settings
from mixlist.training.options import TrainOptions
from mixlist.training.result import Curve
from mixlist.training.scalers import Scaler, ScalerError, described, make_scaler
from mixlist.training.step_session import StepSession
from mixlist.training.stepgraph import StepGraph
from mixlist.training.verdict import diverged

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

    ``first_values``: those of ``init``, by name. ``running``: the training that runs, for Ctrl-C.
    """

    graph: StepGraph
    policy: Policy
    options: TrainOptions
    samples: Data
    held: Data
    metric: Metric
    steps: int
    first_values: dict[str, Array]
    running: Training | None = field(default=None, init=False)

    @property
    def settings(self) -> Settings:
        """The optimizer."""
        return self.options.optimizer or Settings()

    @property
    def scaler(self) -> tuple[str, dict[str, object]]:
        """The scaler's name and the parameters that were given."""
        return self.options.scaler, dict(self.options.scaler_parameters or {})

    def new_scaler(self) -> Scaler:
        """Return a scaler at its start; raises UsageError for parameters that it does not have."""
        name, parameters = self.scaler
        return make_scaler(name, **parameters)

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

    def curve(
        self, states: StateFile, seed: int, kind: str, session: StepSession, sampler: UnderflowSampler | None
    ) -> tuple[Curve, dict[str, Array] | None]:
        """Make one whole training, or what is left of it; return its curve and the feed of its first bad step."""
        name = f"{seed}/{kind}"
        finished = states.finished(name)
        if finished is not None:
            return finished
        scaler = self.new_scaler() if kind == "mixed" else None
        training = self.running = self.training(session, seed, scaler)
        states.resume(name, training)
        training.sampler = sampler
        curve, ended = training.history, ""
        while not training.done:
            try:
                training.run(training.step + 1)
            except ScalerError as problem:
                ended = f"was ended: {problem.message}"
                break
            if self.options.told is not None:
                self.options.told(Progress(seed, kind, training.step, self.steps, curve.loss[-1], curve.scale[-1]))
            states.keep(name, training, sampler)
        curve.metric = self.measure(training)
        curve.diverged = ended or diverged(curve.loss, curve.skipped, all_finite(training.parameters.data))
        if kind == "float32" and curve.exceptions and not curve.diverged:
            curve.diverged = f"has gradients that are not finite in {len(curve.exceptions)} of {training.step} steps"
        self.running = None
        states.finish(name, training, sampler)
        return curve, training.first_bad

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
