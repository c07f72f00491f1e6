"""Prepare PyTorch for a call of the user's loop: seeds, and what would hide operators from mixlist.

While the loop runs, ``torch.autocast`` is off, ``torch.compile`` runs eagerly, and attention consists of its single
operators, in all three trainings. The report says what was switched off.
"""

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

    def disable_autocast(*arguments: Any) -> None:
        if arguments[-1]:
            switched_off.add("autocast")
        set_autocast_enabled(*arguments[:-1], False)

    def keep_eager(model: Any = None, **_: Any) -> Any:
        switched_off.add("compile")
        return (lambda function: function) if model is None else model

    set_autocast_enabled = torch.set_autocast_enabled
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # Attention layers in the mode eval() run their single operators, as they do in training.
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        # The context of autocast calls this function.
        stack.callback(setattr, torch, "set_autocast_enabled", set_autocast_enabled)
        torch.set_autocast_enabled = disable_autocast
        # Functions that were compiled before run eagerly. The import of the compiler takes a second. If it was not
        # imported, nothing was compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(setattr, torch, "compile", torch.compile)
        torch.compile = keep_eager
        yield switched_off
