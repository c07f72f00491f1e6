"""Test that CUDA can be used: a build of ONNX Runtime with the provider can be installed on a machine without a GPU."""

from __future__ import annotations

from functools import cache

from mixlist.errors import MixlistError
from tests.support.builders import model
from tests.support.package import SessionOptions, open_session


@cache
def cuda_error() -> str:
    """Return the message of the error with which a session on CUDA fails to start, "" if it starts."""
    try:
        open_session(model("g (float[2] x) => (float[2] y) { y = Neg(x) }").SerializeToString(), SessionOptions("cuda"))
    except MixlistError as error:
        return error.message
    return ""
