"""Say if a quantized model misses the limits by itself: there, rounding to integers makes small differences large.

ONNX Runtime's optimizations change the last bits of float32, or replace a quantized unit by an integer kernel. If the
float32 model with them differs from the reference by more than the limits, no choice of nodes explains a failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from mixlist.checker.integer_outputs import QUANTIZING
from mixlist.checker.limits import Limits, describe_failed_limits
from mixlist.checker.model_pair import ModelPair
from mixlist.errors import ModelError
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from mixlist.checker.accuracy import OutputAccuracy
    from mixlist.run.session import Feed

_BATCHES = 3
DIFFERS = "the quantized model differs from itself"


def describe_own_spread(
    pair: ModelPair, batches: Iterable[Feed], failing: Iterable[OutputAccuracy], limits: Limits
) -> tuple[str, ...]:
    """Return a sentence if the float32 model with optimizations misses a limit, too; () otherwise.

    ``failing``: an object without batches for each output that fails.
    """
    failing = list(failing)
    is_cut = pair.sessions.segment_bytes is not None
    if is_cut or not failing or not any(node.node.op_type in QUANTIZING for node in pair.nodes):
        return ()
    names = [accuracy.name for accuracy in failing]
    try:
        with pair.sessions.open_optimized(pair.reference.loaded) as session:
            for index, feed in enumerate(islice(batches, _BATCHES)):
                reference, _ = pair.reference_observer.run(feed)
                optimized = dict(zip(names, session.run(names, feed), strict=True))
                for accuracy in failing:
                    accuracy.add(reference[accuracy.name], optimized[accuracy.name], index)
    except ModelError:  # it dies or is refused: nothing is known, and the check has its findings
        return ()
    for accuracy in failing:
        if missed := describe_failed_limits(accuracy.finding(limits), limits):
            return (
                f"{DIFFERS}: with ONNX Runtime's optimizations, in float32, output"
                f" {accuracy.name!r} misses {missed}; use larger limits, or {spell('judge')}",
            )
    return ()
