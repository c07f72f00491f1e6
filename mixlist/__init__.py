"""mixlist: mixed-precision lists for ONNX models: validate, resolve, apply.

Heavy packages load when a function first needs them; importing mixlist stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixlist.version import __version__ as __version__

if TYPE_CHECKING:
    from mixlist.benchmark.timing import bench as bench
    from mixlist.checker.result import CheckReport as CheckReport
    from mixlist.checker.run import check as check
    from mixlist.errors import MixlistError as MixlistError
    from mixlist.lists.load import load_policy as load_policy
    from mixlist.lists.policy import Policy as Policy
    from mixlist.resolver import resolve as resolve
    from mixlist.resolver.plan import Plan as Plan
    from mixlist.rewriter import RewriteResult as RewriteResult
    from mixlist.rewriter import rewrite as rewrite
    from mixlist.tuner.result import TuneReport as TuneReport
    from mixlist.tuner.run import tune as tune

_HOME = {
    "CheckReport": "mixlist.checker.result",
    "MixlistError": "mixlist.errors",
    "Policy": "mixlist.lists.policy",
    "Plan": "mixlist.resolver.plan",
    "RewriteResult": "mixlist.rewriter",
    "TuneReport": "mixlist.tuner.result",
    "bench": "mixlist.benchmark.timing",
    "check": "mixlist.checker.run",
    "load_policy": "mixlist.lists.load",
    "resolve": "mixlist.resolver",
    "rewrite": "mixlist.rewriter",
    "tune": "mixlist.tuner.run",
}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mixlist' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_HOME[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
