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

from mixlist.lists import presets
from mixlist.lists.policy import NEW_MODES, OLD_MODES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from onnx import ModelProto, NodeProto

    from mixlist.model.naming import NodeRef

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]
# A function of the running command that returns values, each with its description; "" for none.
Values: TypeAlias = Callable[[click.Context], Iterable[tuple[str, str]]]

MAX_MODEL_BYTES = 2**28  # reading a larger file takes longer than a user waits for the Tab key


def _completer(values: Values, *, or_path: bool = False) -> Completer:
    """Return the function that click calls. ``or_path``: the shell completes a path if no value fits."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        fitting = [(value, text) for value, text in values(context) if value.startswith(incomplete)]
        # A line break would be a line of its own in the protocol of the scripts.
        items = [CompletionItem(value, help=text or None) for value, text in fitting if value.isprintable()]
        return items or ([CompletionItem(incomplete, type="file")] if or_path else [])

    return complete


# --- the values ---


def _targets(context: click.Context) -> Iterable[tuple[str, str]]:
    from mixlist.targets.target import TARGETS

    return ((name, "") for name in TARGETS)


def _nodes(context: click.Context) -> Iterable[tuple[str, str]]:
    """Return the names of the model's nodes, each with its op type: the shortest one that only this node has."""
    from mixlist.model.naming import unique_names

    op_types = dict(_named_nodes(context))
    return ((name, op_types[ref]) for ref, name in unique_names(op_types).items())


def _op_types(context: click.Context) -> Iterable[tuple[str, str]]:
    counts = Counter(op_type for _, op_type in _named_nodes(context))
    return ((op_type, f"nodes: {number}") for op_type, number in sorted(counts.items()))


def _scopes(context: click.Context) -> Iterable[tuple[str, str]]:
    """Return the paths in the names of nodes up to each slash: ``/model/``, ``/model/layers.0/``."""
    names = (str(ref) for ref, _ in _named_nodes(context))
    paths = Counter(name[: i + 1] for name in names for i, letter in enumerate(name) if letter == "/" and i)
    return ((path, f"nodes: {number}") for path, number in paths.items())


def _interface(context: click.Context) -> Iterator[tuple[str, str]]:
    if (model := _read_model(context)) is not None:
        yield from ((value.name, "input") for value in model.graph.input)
        yield from ((value.name, "output") for value in model.graph.output)


def _rules(context: click.Context) -> Iterable[tuple[str, str]]:
    """Return the words for the rules that decide nodes, which the schema of ``resolve`` lists."""
    import json

    from mixlist.files.package_data import data_folder

    schema = json.loads((data_folder("schemas") / "resolve.json").read_text("utf-8"))
    return ((name, "") for name in schema["$defs"]["node"]["properties"]["rule"]["enum"])


complete_library = _completer(lambda _: ((name, presets.find(name).title) for name in presets.names()), or_path=True)
complete_target = _completer(_targets, or_path=True)
complete_node = _completer(_nodes)
complete_op_type = _completer(_op_types)
complete_scope = _completer(_scopes)
complete_interface = _completer(_interface)
complete_rule = _completer(_rules)
# By the names of options that a dataclass declares.
COMPLETER_OF_FIELD: dict[str, Completer] = {
    "ops_info": complete_library,
    "precision_mode": _completer(lambda _: ((name, "") for name in OLD_MODES)),
    "precision_mode_v2": _completer(lambda _: ((name, "") for name in NEW_MODES)),
    "keep_io": complete_interface,
}


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
    if (model := _read_model(context)) is not None:
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
