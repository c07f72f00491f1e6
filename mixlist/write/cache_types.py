"""Warn about a cache whose input and output get different types: a program passes the output on as the next input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic, warning
from mixlist.model import dtypes
from mixlist.text_escapes import quote_argument

if TYPE_CHECKING:
    from onnx import GraphProto

# Exporters call the caches past_key_values.0.key and present.0.key, past.0.key and present.0.key, or past_key and
# present_key.
_PAST_NAMES = (re.compile("past_key_values"), re.compile("past"))


def find_caches(graph: GraphProto) -> list[tuple[str, str]]:
    """Return the names of each input that is a cache, and of the output of the same type that replaces it."""
    output_types = {info.name: dtypes.from_proto(info.type) for info in graph.output}
    caches = []
    for info in graph.input:
        names = [pattern.sub("present", info.name, count=1) for pattern in _PAST_NAMES]
        present = next((name for name in names if name != info.name and name in output_types), None)
        if present is not None and output_types[present] == dtypes.from_proto(info.type):
            caches.append((info.name, present))
    return caches


def find_cache_warnings(graph: GraphProto, caches: Sequence[tuple[str, str]]) -> Iterator[Diagnostic]:
    """Yield the warning ML511 if the types of ``caches`` differ in the rewritten graph (Rule S7.3)."""
    if not caches:
        return
    types = {info.name: dtypes.from_proto(info.type) for info in (*graph.input, *graph.output)}
    changed = [(past, present) for past, present in caches if types[past] != types[present]]
    if not changed:
        return
    past, present = changed[0]
    others = f", and {len(changed) - 1} other caches have two types" if len(changed) > 1 else ""
    yield warning(
        "ML511",
        f"cache input {past!r} is {dtypes.type_name(types[past])}, and output {present!r}, which replaces it, is "
        f"{dtypes.type_name(types[present])}{others}",
        hint="keep both with "
        + " ".join(f"--keep-io {quote_argument(name)}" for name in changed[0])
        + ", or make every node that reads the cache white",
    )
