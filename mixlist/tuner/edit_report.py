"""What the result is told with: each edit's purpose, cost and need; and what a search depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mixlist.checker.result import CheckReport
from mixlist.graph.io import Loaded
from mixlist.graph.save import content_digest
from mixlist.lists.policy import Policy
from mixlist.runtime.feeds import digest
from mixlist.tuner.candidate_ranking import Suspicion
from mixlist.tuner.candidates import Choice, ListEdit, NodeEdit, Unit
from mixlist.tuner.options import TuneOptions
from mixlist.tuner.result import TunedEdit
from mixlist.tuner.strategy import Strategy
from mixlist.tuner.trial_compiler import Rig
from mixlist.tuner.trial_outcome import Goal
from mixlist.tuner.trials import Trial, Trials

SPARE = "keeps the limits too"  # what an edit is told with that could go


def broken(report: CheckReport, goal: Goal) -> tuple[str, ...]:
    """Why a check says no to the goal; () where it says yes."""
    told = report.reasons if report.verdict == "fail" else ()
    if report.task is not None and goal.accuracy_loss is not None:
        count = max(report.task.count, 1)
        right, kept = (round(share * count) for share in (report.task.reference, report.task.mixed))
        loss = (right - kept) / count  # as the trials have it: a difference of shares is off by a rounding
        if loss > goal.accuracy_loss:
            told = (*told, f"task accuracy falls by {loss:.4g}, the limit is {goal.accuracy_loss:g}")
    return told


def edits(
    choice: Choice, rig: Rig, trials: Trials, strategy: Strategy, suspicion: Suspicion, *, quick: bool
) -> tuple[TunedEdit, ...]:
    """One line per edit, lists before nodes. ``quick``: nothing more is tried."""
    found = []
    for edit in sorted(choice, key=lambda e: (isinstance(e, NodeEdit), str(e))):
        unit = strategy.units.get(edit, Unit(edit, ()))
        rest = choice - {edit}
        without = "" if quick else _without(edit, choice, trials, strategy)
        share, other = rig.share(choice), rig.share(rest)
        high, low = rig.low_nodes(choice), rig.low_nodes(rest)
        found.append(
            TunedEdit(
                op=edit.op if isinstance(edit, ListEdit) else edit.op_type,
                node=edit.pattern if isinstance(edit, NodeEdit) else "",
                before=edit.before if isinstance(edit, ListEdit) else rig.base.mode.low,
                after=edit.after if isinstance(edit, ListEdit) else "float32",
                why=suspicion.why(unit),
                nodes=len(high ^ low),
                cost=other - share if share is not None and other is not None else None,
                without=without,
            )
        )
    return tuple(found)


def _without(edit: ListEdit | NodeEdit, choice: Choice, trials: Trials, strategy: Strategy) -> str:
    outcome = trials.outcome(choice - {edit})
    if not outcome.passed:
        return outcome.why
    gain = strategy.gain(edit, choice)
    return f"{SPARE}, {gain}" if gain else SPARE


def logged(trial: Trial) -> dict[str, Any]:
    """One line of the search's log."""
    return {
        "edits": list(trial.edits),
        "passed": trial.outcome.passed,
        "why": trial.outcome.why,
        "remembered": trial.remembered,
    }


def key(
    loaded: Loaded,
    policy: Policy,
    feeds: Sequence[Mapping[str, Any]],
    goal: Goal,
    options: TuneOptions,
) -> dict[str, str]:
    """What the outcomes of trials depend on, each as a digest or text."""
    import onnxruntime

    from mixlist.version import __version__

    return {
        "model": content_digest(loaded),
        "data": digest([*feeds, {"labels": options.labels}]),
        "lists": policy.digest,
        "type hints": repr(sorted((options.type_hints or {}).items())),
        "limits": f"{goal} {options.overflow_mode}",
        "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
    }
