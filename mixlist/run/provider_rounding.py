"""Test whether a provider keeps the Casts that round to a low type: run tiny models whose outputs depend on them.

An emulated check needs these Casts. If ONNX Runtime's optimizations dropped them, the check would find no overflow and
no rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.worker_processes import WorkerDied

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.run.session import Session

# Each output goes through a Cast to the low type and a Cast back to float32. If the output is the exact float32 result,
# ONNX Runtime dropped these Casts.
# - ``overflow``: the sum of a MatMul that is beyond the range of the low type. With the Casts, the output is infinite.
# - ``rounding``: an odd integer that the low type cannot represent. With the Casts, the output is the even integer
#   below it.
_TEST_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
rounding_test (float[1, 64] row, float[64, 1] column, float[1] even) => (float[1, 1] overflow, float[1] rounding)
<float one = {1}, float small = {0.001}>
{
    sum = MatMul (row, column)
    sum_low = Cast <to = LOW> (sum)
    sum_back = Cast <to = 1> (sum_low)
    overflow = Mul (sum_back, small)
    odd = Add (even, one)
    odd_low = Cast <to = LOW> (odd)
    odd_back = Cast <to = 1> (odd_low)
    rounding = Mul (odd_back, one)
}"""
# For each low type: its number in ONNX; a factor f for which 64 f^2 overflows the low type but not float32; an even
# number whose odd successor the low type cannot represent (float16 has 11 bits of mantissa, bfloat16 has 8).
_TEST_VALUES = {"float16": (10, 300.0, 2048.0), "bfloat16": (16, 2.305e18, 256.0)}


def start_rounding_tests(provider: str, start_session: Callable[[ModelProto], Session]) -> Callable[[], str | None]:
    """Run the tests in the sessions that ``start_session`` makes, and return a function that waits for the results.

    That function returns the reason why the provider does not round, or None if it does. Sessions in other processes
    run while this process continues. Raises UsageError if the provider is missing, and WorkerDied if the process of a
    session dies.
    """
    # Start both tests before the wait for the first one, so that they run while this process continues.
    wait_for = {low: _start_test(start_session, *values) for low, values in _TEST_VALUES.items()}

    def find_problem() -> str | None:
        for low, (_, factor, even) in _TEST_VALUES.items():
            try:
                overflow, rounding = wait_for[low]()
            except ModelError as error:
                # A crash is no answer about rounding, so it stays an error.
                if isinstance(error, WorkerDied):
                    raise
                return f"the test model for {low} does not run on {provider}: {error.message}"
            problem = f"ONNX Runtime's {provider} provider drops the Casts that round to {low}"
            if overflow != math.inf:
                return f"{problem}: 64 x {factor:g} x {factor:g} x 0.001 gave {overflow:g} instead of inf"
            if rounding != even:
                return f"{problem}: {even + 1:g} stayed {rounding:g} instead of {even:g}"
        return None

    return find_problem


def _start_test(
    start_session: Callable[[ModelProto], Session], low_elem: int, factor: float, even: float
) -> Callable[[], tuple[float, float]]:
    """Start the test model of one low type, and return a function that waits for its two outputs.

    That function raises ModelError, also if the model could not start.
    """
    import numpy as np
    from onnx import parser

    row = np.full((1, 64), factor, np.float32)
    feed = {"row": row, "column": row.T.copy(), "even": np.array([even], np.float32)}
    refusal: ModelError | None = None
    try:
        session = start_session(parser.parse_model(_TEST_MODEL.replace("LOW", str(low_elem))))
        wait_for_outputs = session.start(None, feed)
    except ModelError as error:
        refusal = error  # ``find_problem`` reports it with the low type

    def wait() -> tuple[float, float]:
        if refusal is not None:
            raise refusal
        overflow, rounding = wait_for_outputs()
        session.close()
        return float(overflow.item()), float(rounding.item())

    return wait
