"""Rule S7.3: a cache whose input and output get different types warns (ML511)."""

from __future__ import annotations

import pytest

import mixlist
from mixlist.diagnostics import Diagnostic
from tests.support.builders import model, policy

# The Log stays float32, so the past does, too; the Concat is float16.
CACHES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] {past}, float[M, 4] x, float[N, 4] other) => (float[K, 4] {present}, float[N, 4] y, float[N, 4] z) {{
  {present} = Concat <axis = 0> ({past}, x)
  y = Log ({past})
  z = Neg (other)
}}"""
NAMES = [("past.0.key", "present.0.key"), ("past_key_values.0.key", "present.0.key"), ("past_key", "present_key")]


def cache_warnings(past: str, present: str, white: list[str], **options: object) -> list[Diagnostic]:
    proto = model(CACHES.format(past="p", present="q"))
    renamed = {"p": past, "q": present}
    for info in (*proto.graph.input, *proto.graph.output):
        info.name = renamed.get(info.name, info.name)
    for node in proto.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    plan = mixlist.resolve(proto, policy(white=white))
    result = mixlist.rewrite(proto, plan, **options)  # type: ignore[arg-type]
    return [w for w in result.warnings if w.code == "ML511"]


@pytest.mark.parametrize(("past", "present"), NAMES)
def test_an_output_of_another_type_than_its_past_warns(past: str, present: str) -> None:
    (found,) = cache_warnings(past, present, ["Concat"], keep_io_types=False)
    assert f"cache input {past!r} is float32, and output {present!r}, which replaces it, is float16" in found.message
    assert f"--keep-io {past} --keep-io {present}" in (found.hint or "")


def test_a_cache_of_one_type_does_not_warn() -> None:
    assert cache_warnings("past", "present", ["Concat"]) == []  # inputs and outputs stay
    assert cache_warnings("past", "present", ["Concat", "Log"], keep_io_types=False) == []  # both become float16
    kept = {"keep_io_types": False, "keep_io": ["past", "present"]}
    assert cache_warnings("past", "present", ["Concat"], **kept) == []


def test_an_output_with_an_unrelated_name_does_not_warn() -> None:
    assert cache_warnings("before", "after", ["Concat"], keep_io_types=False) == []
