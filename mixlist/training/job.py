"""What all trainings of one command have in common, and one of them from its start, or its state, to its curve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.graph.save import content_digest
from mixlist.lists.policy import Policy
from mixlist.runtime.feeds import digest
from mixlist.training.checkpoint import Keeper
from mixlist.training.dataset import Data
from mixlist.training.evaluation import Metric, evaluate
from mixlist.training.gradient_underflow import Sampler
from mixlist.training.loop import Training, all_finite
from mixlist.training.optimizers import Settings
from mixlist.training.options import TrainOptions
from mixlist.training.result import Curve
from mixlist.training.scalers import Scaler, ScalerError, described, make_scaler
from mixlist.training.step_session import Machine
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
    """The trainings of one command. ``steps``: of each; ``known``: first values that were given, by name."""

    graph: StepGraph
    policy: Policy
    options: TrainOptions
    samples: Data
    held: Data
    metric: Metric
    steps: int
    known: dict[str, Array]
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

    def training(self, machine: Machine, seed: int, scaler: Scaler | None) -> Training:
        """Return a training at its start."""
        return Training(
            self.graph,
            machine,
            self.samples,
            self.settings,
            batch_size=self.options.batch_size,
            steps=self.steps,
            seed=seed,
            scaler=scaler,
            given=self.known,
            advance_on_skip=self.options.advance_on_skip,
        )

    def curve(
        self, keeper: Keeper, seed: int, kind: str, machine: Machine, sampler: Sampler | None
    ) -> tuple[Curve, dict[str, Array] | None]:
        """One whole training, or what is left of it; and what its first bad step read."""
        name = f"{seed}/{kind}"
        finished = keeper.finished(name)
        if finished is not None:
            return finished
        scaler = self.new_scaler() if kind == "mixed" else None
        training = self.running = self.training(machine, seed, scaler)
        keeper.resume(name, training)
        training.sampler = sampler
        ended = ""
        while not training.done:
            try:
                training.run(training.step + 1)
            except ScalerError as problem:
                ended = f"was ended: {problem.message}"
                break
            if self.options.told is not None:
                last = training.history
                self.options.told(Progress(seed, kind, training.step, self.steps, last.loss[-1], last.scale[-1]))
            keeper.keep(name, training, sampler)
        curve = self._judged(training, machine, kind, ended)
        self.running = None
        keeper.finish(name, curve, training.first_bad, sampler)
        return curve, training.first_bad

    def cut_off(self) -> Curve | None:
        """What there is of the training that was interrupted, unjudged."""
        return _curve(self.running, None, "") if self.running is not None else None

    def measure(self, training: Training, machine: Machine, data: Data) -> float:
        """The metric of a training as it stands."""
        values = {**training.parameters.views, **training.buffers}
        return evaluate(self.graph, machine, values, data, self.metric, self.options.batch_size)

    def _judged(self, training: Training, machine: Machine, kind: str, ended: str) -> Curve:
        history = training.history
        why = ended or diverged(history.loss, history.skipped, all_finite(training.parameters.data))
        if kind == "float32" and history.exceptions and not why:
            why = f"has gradients that are not finite in {len(history.exceptions)} of {training.step} steps"
        return _curve(training, self.measure(training, machine, self.held), why)

    def key(self) -> dict[str, str]:
        """What the numbers of a training depend on."""
        import onnxruntime

        from mixlist.version import __version__

        options = self.options
        scaler = described(self.new_scaler())
        return {
            "step graph": content_digest(self.graph.loaded),
            "data": digest([self.samples.arrays, self.held.arrays]),
            "lists": self.policy.digest,
            "initial values": digest([self.known]),
            "options": f"{self.settings} {options.batch_size} {self.steps} {scaler} {options.advance_on_skip}"
            f" {options.provider} {options.threads} {self.metric}",
            "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
        }


def _curve(training: Training, metric: float | None, why: str) -> Curve:
    history = training.history
    return Curve(
        tuple(history.loss),
        metric,
        tuple(history.scale),
        tuple(history.skipped),
        tuple(history.exceptions),
        history.tries,
        history.bad,
        why,
    )
