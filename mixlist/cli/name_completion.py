"""Complete the values of options in a shell: built-in libraries, modes and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import click

from mixlist.lists import presets
from mixlist.lists.policy import NEW_MODES, OLD_MODES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def _completer(names: Callable[[], Iterable[str]], *, or_path: bool = False) -> Completer:
    """Return the function that click calls. ``or_path``: the shell completes a path if no name fits."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return items or ([CompletionItem(incomplete, type="file")] if or_path else [])

    return complete


def _targets() -> Iterable[str]:
    from mixlist.targets.target import TARGETS

    return TARGETS


complete_target = _completer(_targets, or_path=True)
# By the names of options that a dataclass declares.
COMPLETER_OF_FIELD: dict[str, Completer] = {
    "ops_info": _completer(presets.names, or_path=True),
    "precision_mode": _completer(lambda: OLD_MODES),
    "precision_mode_v2": _completer(lambda: NEW_MODES),
}
