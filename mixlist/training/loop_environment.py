"""Prepare PyTorch for a call of the user's loop: seeds, and what would hide operators from mixlist (Rule S10.31)."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def loop_environment(seed: int) -> Iterator[set[str]]:
    """Seed torch, numpy and random, and run all operators one by one in float32; yield what had to be switched off.

    - ``torch.autocast`` does nothing: mixlist rounds the operators itself. The set then holds "autocast".
    - ``torch.compile`` runs eagerly; the set then holds "compile".
    - Attention uses the kernel that consists of single operators.
    """
    switched_off: set[str] = set()
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # loops use numpy's global generator
    random.seed(seed)
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_without_fast_path())
        stack.enter_context(_without_autocast(switched_off))
        stack.enter_context(_without_compilation(switched_off))
        yield switched_off


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Let attention layers in the mode eval() run their single operators, as they do in training."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def _without_autocast(switched_off: set[str]) -> Iterator[None]:
    """Switch autocast off: its context calls ``torch.set_autocast_enabled``."""
    original = torch.set_autocast_enabled

    def set_disabled(*arguments: Any) -> None:
        if arguments[-1]:
            switched_off.add("autocast")
        original(*arguments[:-1], False)

    torch.set_autocast_enabled = set_disabled
    try:
        yield
    finally:
        torch.set_autocast_enabled = original


@contextmanager
def _without_compilation(switched_off: set[str]) -> Iterator[None]:
    """Run compiled functions eagerly, those that were compiled before and those that the loop compiles."""
    original = torch.compile

    def keep(model: Any = None, **_: Any) -> Any:
        switched_off.add("compile")
        return (lambda function: function) if model is None else model

    with ExitStack() as stack:
        # The import of the compiler takes a second. If it was not imported, nothing was compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.compile = keep
        try:
            yield
        finally:
            torch.compile = original
