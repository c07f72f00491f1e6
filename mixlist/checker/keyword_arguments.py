"""Let a function take the fields of an options dataclass as keyword arguments.

``mixlist.check(model, policy, data, layerwise=True)`` is for callers what ``run_check(model, policy, data,
CheckOptions(layerwise=True))`` is inside. ``help``, editors and type checkers see each keyword with its default.
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
    """Decorate a function of a model, a policy, data and an options dataclass."""

    def decorate(function: Callable[[Model, Policy, Any, Options], Report]) -> PublicFunction[Keywords, Report]:
        def public(
            model: Model, policy: Policy, data: Any, *positional: Keywords.args, **keywords: Keywords.kwargs
        ) -> Report:
            options = options_class(*positional, **keywords)
            require_policy(policy)
            return function(model, policy, data, options)

        public.__signature__ = field_signature(function, options_class)  # type: ignore[attr-defined]
        return update_wrapper(public, function)

    return decorate
