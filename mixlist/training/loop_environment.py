"""Prepare PyTorch for a call of the user's loop: seeds, what would hide operators from mixlist, warnings, and Ctrl-C.

While the loop runs, ``torch.compile`` runs eagerly, and attention consists of its single operators, in all three
trainings. ``torch.autocast`` has no lists, and its regions with ``enabled=False`` are float32. The report says so.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mixlist.training.rounding_mode import ModuleTracker

# PyTorch makes these regions itself, as the state of autocast was in the forward pass; it is off here.
_OWN_REGIONS = ("torch.utils.checkpoint", "torch.amp.autocast_mode")


@contextmanager
def loop_environment(seed: int, tracker: ModuleTracker) -> Iterator[set[str]]:
    """Seed torch, numpy and random, and run all operators one by one; yield what of the loop has no effect.

    - ``torch.compile`` runs eagerly; the set then holds "compile".
    - ``torch.autocast`` only tells ``tracker`` of its regions. The set holds "autocast" after an enabled one, and the
      name of its type if the loop gives one.
    - Attention uses the kernel that consists of single operators.
    """
    without_effect: set[str] = set()
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # loops use numpy's global generator
    random.seed(seed)

    def keep_eager(model: Any = None, **_: Any) -> Any:
        without_effect.add("compile")
        return (lambda function: function) if model is None else model

    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # Attention layers in the mode eval() run their single operators, as they do in training.
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        # Functions that were compiled before run eagerly. The import of the compiler takes a second. If it was not
        # imported, nothing was compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(setattr, torch, "compile", torch.compile)
        torch.compile = keep_eager
        stack.enter_context(_autocast_regions(tracker, without_effect))
        yield without_effect


@contextmanager
def _autocast_regions(tracker: ModuleTracker, without_effect: set[str]) -> Iterator[None]:
    """Let ``torch.autocast`` do nothing but note its regions in ``tracker``: see ``loop_environment``."""
    kind = torch.amp.autocast_mode.autocast
    methods = {name: vars(kind)[name] for name in ("__init__", "__enter__", "__exit__")}

    def init(region: Any, device_type: str, dtype: Any = None, enabled: bool = True, *more: Any, **named: Any) -> None:
        with warnings.catch_warnings(action="ignore"):  # that it is off, because there is no such device
            methods["__init__"](region, device_type, dtype, enabled, *more, **named)
        # Without its device, PyTorch switches a region off.
        region.mixlist_enabled, region.mixlist_type = enabled, dtype
        if sys._getframe(1).f_globals["__name__"] in _OWN_REGIONS:
            region.mixlist_enabled = None

    def enter(region: Any) -> Any:
        # A region that was made before the loop, on a machine without its device, counts as enabled.
        enabled = getattr(region, "mixlist_enabled", region._enabled or not torch.cuda.is_available())
        if enabled is not None:
            tracker.enter_region(region, is_float32=not enabled)
        if enabled:
            dtype = getattr(region, "mixlist_type", None)
            without_effect.update({"autocast"} if dtype is None else {"autocast", str(dtype).removeprefix("torch.")})
        return region

    def leave(region: Any, *_: object) -> bool:
        tracker.leave_region(region)
        return False

    for name, method in zip(methods, (init, enter, leave), strict=True):
        setattr(kind, name, method)
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(kind, name, method)


@contextmanager
def show_warnings_once() -> Iterator[None]:
    """Show each warning of Python once, and not in every training: PyTorch forgets what it has shown."""
    shown: set[tuple[str, str, int]] = set()
    show = warnings.showwarning

    def show_new(message: Warning | str, category: Any, filename: str, lineno: int, *more: Any) -> None:
        key = str(message), filename, lineno
        if key not in shown:
            shown.add(key)
            show(message, category, filename, lineno, *more)

    warnings.showwarning = show_new  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = show


@contextmanager
def remember_ctrl_c() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if Ctrl-C was pressed before.

    Python drops the error of the signal in a callback of a weak reference, and a loop, or its library, may catch it.
    """
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def raise_again() -> None:
        if pressed:
            raise KeyboardInterrupt

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield raise_again
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield raise_again
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
