"""Complete the values of options in a shell: built-in libraries, modes, and names in the model of the command line.

The completion scripts call mixlist at each press of the Tab key. So the model's message is only parsed: it is not
linked, its weights in other files are not read, and every error means that there is nothing to complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from onnx import ModelProto, NodeProto

    from mixlist.model.naming import NodeRef

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]

MAX_MODEL_BYTES = 2**28  # reading a larger file takes longer than a user waits for the Tab key


def complete_library(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the built-in libraries; the shell completes paths if none of them fits."""
    from click.shell_completion import CompletionItem

    from mixlist.lists import presets

    items = _matching(incomplete, ((name, presets.find(name).title) for name in presets.names()))
    return items or [CompletionItem(incomplete, type="file")]


def complete_old_mode(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the modes of ``--precision-mode``."""
    from mixlist.lists.policy import OLD_MODES

    return _matching(incomplete, ((name, "") for name in OLD_MODES))


def complete_new_mode(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the modes of ``--precision-mode-v2``."""
    from mixlist.lists.policy import NEW_MODES

    return _matching(incomplete, ((name, "") for name in NEW_MODES))


def complete_node(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of the model's nodes, each with its op type: the shortest one that only this node has."""
    from mixlist.model.naming import unique_names

    op_types = dict(_named_nodes(context))
    return _matching(incomplete, ((name, op_types[ref]) for ref, name in unique_names(op_types).items()))


def complete_op_type(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the op types of the model, each with the number of its nodes."""
    counts = Counter(op_type for _, op_type in _named_nodes(context))
    return _matching(incomplete, ((op_type, f"nodes: {number}") for op_type, number in sorted(counts.items())))


def complete_scope(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the paths in the names of nodes up to each slash: ``/model/``, ``/model/layers.0/``."""
    paths = Counter[str]()
    for ref, _ in _named_nodes(context):
        name = str(ref)
        paths.update(name[: position + 1] for position, letter in enumerate(name) if letter == "/" and position)
    return _matching(incomplete, ((path, f"nodes: {number}") for path, number in paths.items()))


def complete_interface(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of the model's inputs and outputs."""
    model = _read_model(context)
    if model is None:
        return []
    values = [(value.name, "input") for value in model.graph.input]
    return _matching(incomplete, [*values, *((value.name, "output") for value in model.graph.output)])


def complete_rule(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the words for the rules that decide nodes, which the schema of ``resolve`` lists."""
    import json

    from mixlist.files.package_data import data_folder

    schema = json.loads((data_folder("schemas") / "resolve.json").read_text("utf-8"))
    return _matching(incomplete, ((name, "") for name in schema["$defs"]["node"]["properties"]["rule"]["enum"]))


# By the names of options that a dataclass declares.
COMPLETER_OF_FIELD: dict[str, Completer] = {
    "precision_mode": complete_old_mode,
    "precision_mode_v2": complete_new_mode,
}


def _matching(incomplete: str, values: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    """Return the values that begin with the typed text, each with its description; "" for none."""
    from click.shell_completion import CompletionItem

    items = (CompletionItem(value, help=text or None) for value, text in values if value.startswith(incomplete))
    # A line break would be a line of its own in the protocol of the scripts.
    return [item for item in items if str(item.value).isprintable()]


# --- the model ---


def _read_model(context: click.Context) -> ModelProto | None:
    """Return the message of the model that the command line names; None if there is none or it cannot be read."""
    # Where the last option lacks its value, click does not assign the arguments to parameters.
    arguments = [context.params.get("model"), *context.args]
    try:
        paths = (Path(argument).expanduser() for argument in arguments if argument)  # the shell has not expanded them
        path = next(path for path in paths if path.is_file())
        if path.stat().st_size > MAX_MODEL_BYTES:
            return None
        import onnx

        return onnx.load(path, load_external_data=False)
    except Exception:  # an error would appear in the middle of the line that the user types
        return None


def _named_nodes(context: click.Context) -> Iterator[tuple[NodeRef, str]]:
    """Yield each node of all scopes with its op type."""
    model = _read_model(context)
    if model is None:
        return
    yield from _nodes_in_scope(model.graph.node, "")


def _nodes_in_scope(nodes: Iterable[NodeProto], path: str) -> Iterator[tuple[NodeRef, str]]:
    """Yield the nodes of a scope and of the bodies in it.

    Nodes without a name are called as in reports (Rule S6.4) if the file has them in topological order.
    """
    from mixlist.model.naming import NodeRef, qualified_name

    nodes = list(nodes)
    used_names = {node.name for node in nodes}
    numbers: dict[str, Iterator[int]] = {}
    for node in nodes:
        names = (f"{node.op_type}_{number}" for number in numbers.setdefault(node.op_type, count()))
        name = node.name or next(name for name in names if name not in used_names)
        yield NodeRef(path, name), node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes_in_scope(attribute.g.node, qualified_name(path, f"{name}/{attribute.name}"))
