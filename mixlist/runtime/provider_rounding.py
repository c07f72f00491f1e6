"""Test whether a provider keeps the Casts that round to a low type: tiny models whose outputs show it.

Overflow and rounding have to survive ONNX Runtime's optimizations, else an emulated check would find nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.runtime.worker_process import WorkerDied

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.session import Session

# A sum that the low type cannot hold, scaled down again, and an integer between two neighbors of the low type: if
# either shows the float32 result, the Casts around it were dropped.
_PROBE = """<ir_version: 8, opset_import: ["" : 17]>
probe (float[1, 64] row, float[64, 1] column, float[1] even) => (float[1, 1] overflow, float[1] rounding)
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
# Low type: its number in ONNX, a factor whose 64 products overflow it but not float32, an even number whose odd
# neighbor it does not have (float16 has 11 bits of mantissa, bfloat16 has 8).
_PROBES = {"float16": (10, 300.0, 2048.0), "bfloat16": (16, 2.305e18, 256.0)}


def start_rounding_tests(provider: str, open_session: Callable[[ModelProto], Session]) -> Callable[[], str | None]:
    """Start the tests in sessions that ``open_probe`` makes; sessions in other processes run meanwhile.

    Returns a function that waits for the results and returns why the provider does not round, None if it does. Raises
    UsageError where the provider is missing, and WorkerDied where the process of a session dies.
    """
    probes = {low: _Probe(open_session, *probe) for low, probe in _PROBES.items()}

    def reason() -> str | None:
        for low, (_, factor, even) in _PROBES.items():
            try:
                overflow, rounding = probes[low].outputs()
            except ModelError as error:
                if isinstance(error, WorkerDied):
                    raise
                return f"the test model for {low} does not run on {provider}: {error.message}"
            dropped = f"ONNX Runtime's {provider} provider drops the Casts that round to {low}"
            if overflow != math.inf:
                return f"{dropped}: 64 x {factor:g} x {factor:g} x 0.001 gave {overflow:g} instead of inf"
            if rounding != even:
                return f"{dropped}: {even + 1:g} stayed {rounding:g} instead of {even:g}"
        return None

    return reason


class _Probe:
    """One test model, which runs or was refused."""

    def __init__(self, open_session: Callable[[ModelProto], Session], low: int, factor: float, even: float) -> None:
        import numpy as np
        from onnx import parser

        row = np.full((1, 64), factor, np.float32)
        feed = {"row": row, "column": row.T.copy(), "even": np.array([even], np.float32)}
        self._refused: ModelError | None = None
        try:
            self._session = open_session(parser.parse_model(_PROBE.replace("LOW", str(low))))
            self._outputs = self._session.start(None, feed)
        except ModelError as error:
            self._refused = error

    def outputs(self) -> tuple[float, float]:
        """Wait for the two outputs."""
        if self._refused is not None:
            raise self._refused
        overflow, rounding = self._outputs()
        self._session.close()
        return float(overflow.item()), float(rounding.item())
