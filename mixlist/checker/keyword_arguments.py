"""Let a function take the fields of an options dataclass as keyword arguments.

A user calls ``mixlist.check(model, policy, data, layerwise=True)``. Inside, this is ``run_check(model, policy, data,
CheckOptions(layerwise=True))``. ``help``, editors and type checkers show each keyword with its default. The public
functions ``check``, ``tune`` and ``train`` use this decorator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeAlias, TypeVar

from mixlist.lists.policy import Policy, require_policy
from mixlist.option_fields import field_signature

if TYPE_CHECKING:
    from mixlist.graph.load import LoadedModel
    from mixlist.graph.proto_types import ModelSource

    Model: TypeAlias = ModelSource | LoadedModel

Keywords = ParamSpec("Keywords")
Options = TypeVar("Options")
Report = TypeVar("Report")
Report_co = TypeVar("Report_co", covariant=True)


class PublicFunction(Protocol[Keywords, Report_co]):
    """A function of a model, a policy, data and keyword arguments."""

    def __call__(
        self, model: Model, policy: Policy, data: Any, *positional: Keywords.args, **keywords: Keywords.kwargs
    ) -> Report_co: ...


def with_keywords(
    options_class: Callable[Keywords, Options],
) -> Callable[[Callable[[Model, Policy, Any, Options], Report]], PublicFunction[Keywords, Report]]:
    """Return a decorator for a function whose last parameter is an object of ``options_class``.

    The decorated function takes the fields of ``options_class`` as keyword arguments instead.
    """

    def decorate(function: Callable[[Model, Policy, Any, Options], Report]) -> PublicFunction[Keywords, Report]:
        def public_function(
            model: Model, policy: Policy, data: Any, *positional: Keywords.args, **keywords: Keywords.kwargs
        ) -> Report:
            # The dataclass raises the TypeError for an unknown keyword, and UsageError for options that contradict.
            options = options_class(*positional, **keywords)
            require_policy(policy)
            return function(model, policy, data, options)

        # mypy knows the keywords from ParamSpec. ``help`` and editors read this attribute at run time instead, because
        # the code of the function says only ``*positional, **keywords``.
        public_function.__signature__ = field_signature(function, options_class)  # type: ignore[attr-defined]
        return update_wrapper(public_function, function)

    return decorate
