"""Judge the outputs of a check by the numbers that a function of the user returns.

The function runs in the process of the caller, on the outputs that the workers return. So it need not be sent to other
processes, and may be any Python function. It gets the outputs of the reference and of the mixed model for one batch,
each a dict of arrays by name, and returns numbers by name; a larger number is worse. A limit holds if the worst batch
keeps it; NaN keeps no limit. A number without a limit is only reported, but if it is NaN, there is no verdict. Batches
that are not judged are not shown to the function. A function that is missing, raises or returns something else, and a
limit for a name that it never returns, are errors.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mixlist.checker.result import JudgeResult
from mixlist.errors import UsageError
from mixlist.run.python_function import describe_kind

if TYPE_CHECKING:
    from mixlist.run.session import Array

# judge(reference, mixed): the outputs of both models for one batch, by name. A larger number is worse.
Judge: TypeAlias = Callable[[dict[str, Any], dict[str, Any]], Mapping[str, float]]
_HINT = 'return a dict of numbers by name, such as {"boxes_lost": 0.02}'


@dataclass(frozen=True, repr=False)
class UserJudge:
    """A function of the user, and the limits of its numbers by name.

    ``evidence``: the name of a number that must be more than 0 in some batch; otherwise the other numbers say nothing,
    and ``explain_no_evidence`` returns the reason from the largest values of all numbers.
    """

    function: Judge
    limits: Mapping[str, float]
    evidence: str = ""
    explain_no_evidence: Callable[[Mapping[str, float | None]], str] | None = None

    def __post_init__(self) -> None:
        function: object = self.function
        if not callable(function):
            kind = type(function).__name__
            hint = "import the function, and pass it" if kind == "str" else None
            raise UsageError(f"the judge is an object of the type {kind}, and not a function", hint=hint)
        try:
            signature = inspect.signature(self.function)
        except (ValueError, TypeError):  # functions in C may have no signature
            return
        try:
            signature.bind({}, {})
        except TypeError:
            hint = "write def judge(reference, mixed): both are dicts of the outputs by name"
            raise UsageError(f"the judge {self._name}{signature} cannot be called with two dicts", hint=hint) from None

    def __repr__(self) -> str:
        """Return a text that is equal for equal judges, also in another run of the program: for the state of tune."""
        function = inspect.unwrap(self.function)
        code = getattr(function, "__code__", None)
        source = Path(code.co_filename) if code is not None else None
        digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16] if source is not None and source.is_file() else ""
        return f"{self._name} {digest} {sorted(self.limits.items())}"

    @property
    def _name(self) -> str:
        return getattr(inspect.unwrap(self.function), "__qualname__", type(self.function).__name__)

    def measure(self, reference: Mapping[str, Array], mixed: Mapping[str, Array]) -> dict[str, float]:
        """Return the numbers for one batch. Raises UsageError if the function returns something else."""
        # The function gets copies, so that it can change its arrays without changing what is judged later.
        try:
            result = self.function(_copies(reference), _copies(mixed))
        except Exception as error:
            # The traceback has only the code of the user, who may not know the names of the outputs.
            error.add_note(f"The judge {self._name} raised this. It gets dicts of the outputs {', '.join(reference)}.")
            raise
        if not isinstance(result, Mapping):
            raise UsageError(
                f"the judge {self._name} returned {describe_kind(result)}, and not numbers by name", hint=_HINT
            )
        for name, value in result.items():
            if not isinstance(name, str) or not _is_number(value):
                message = f"the judge {self._name} returned {describe_kind(value)} for {name!r}, and not a number"
                raise UsageError(message, hint=_HINT)
        return {name: _as_float(value) for name, value in result.items()}


class JudgeMeasures:
    """The worst value of each number of a judge over the batches; nothing without a judge."""

    def __init__(self, judge: UserJudge | None) -> None:
        self._judge = judge
        self._worst: dict[str, tuple[float, int]] = {}  # by name, the value and its batch
        self._has_batches = False

    def add(self, index: int, reference: Mapping[str, Array], mixed: Mapping[str, Array]) -> None:
        """Call the judge with the outputs of one batch."""
        if self._judge is None:
            return
        self._has_batches = True
        for name, value in self._judge.measure(reference, mixed).items():
            worst = self._worst.get(name, (-math.inf, index))[0]
            # NaN keeps no limit, so it is the worst value.
            if name not in self._worst or value > worst or (math.isnan(value) and not math.isnan(worst)):
                self._worst[name] = value, index

    def results(self) -> tuple[JudgeResult, ...]:
        """Return the worst value of each name, with its limit. NaN keeps no limit.

        Without evidence, a difference of 0 is no value: nothing was compared.
        """
        limits = self._judge.limits if self._judge is not None else {}
        evidence = self._judge.evidence if self._judge is not None else ""
        has_evidence = evidence not in self._worst or self._worst[evidence][0] > 0
        return tuple(
            JudgeResult(
                name,
                value if value or has_evidence or name == evidence else None,
                batch,
                limits.get(name),
                name not in limits or value <= limits[name],
            )
            for name, (value, batch) in self._worst.items()
        )

    def require_limited_names(self) -> None:
        """Raise UsageError if a limit is for a name that the judge has returned for no batch."""
        if self._judge is None or not self._has_batches:
            return
        for name in self._judge.limits:
            if name not in self._worst:
                returned = ", ".join(map(repr, self._worst)) or "no number"
                raise UsageError(
                    f"the judge never returned {name!r}, which has a limit", hint=f"it returned {returned}"
                )


def find_missing_evidence(judge: UserJudge | None, results: Sequence[JudgeResult]) -> tuple[str, ...]:
    """Return a sentence for each number of the judge that says nothing about the model.

    That is NaN without a limit, and the number that must not be 0. ``results``: those of a check, () if it judged no
    batch.
    """
    if judge is None or not results:
        return ()
    return tuple(_explain_missing_evidence(judge, results))


def _explain_missing_evidence(judge: UserJudge, results: Sequence[JudgeResult]) -> Iterator[str]:
    for result in results:
        if result.limit is None and result.value is not None and math.isnan(result.value):
            where = f"{result.name} nan in batch {result.batch}"
            yield f"the judge gives {where}: return a number, or leave the name out there"
    numbers = {result.name: result.value for result in results}
    if judge.explain_no_evidence is not None and not (numbers[judge.evidence] or 0) > 0:
        yield judge.explain_no_evidence(numbers)


def describe_broken_limits(results: tuple[JudgeResult, ...]) -> list[str]:
    """Return a sentence for each name whose limit is broken."""
    return [
        f"the judge gives {result.name} {result.value:.4g} in batch {result.batch}, the limit is {result.limit:g}"
        for result in results
        if not result.passed and result.value is not None
    ]


def _copies(outputs: Mapping[str, Array]) -> dict[str, Any]:
    """Return the outputs with copies of their arrays. Sequences and maps of arrays stay as they are."""
    return {name: value.copy() if hasattr(value, "dtype") else value for name, value in outputs.items()}


def _as_float(value: float) -> float:
    """Return a number as a float; one beyond the range of float, such as 10**400, is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_number(value: object) -> bool:
    """Return True for a number of Python or numpy, and for an array that holds one number."""
    if isinstance(value, numbers.Real):
        return True
    return getattr(value, "ndim", None) == 0 and getattr(getattr(value, "dtype", None), "kind", "") in tuple("fiub")
