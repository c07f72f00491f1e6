"""The tools by name, and the arguments of ``mixlist.export``."""

from __future__ import annotations

import pytest

import mixlist
from tests.support.builders import model, policy

SOURCE = model("g (float[2] x) => (float[2] y) { [e] y = Exp(x) }")


def test_an_unknown_tool_is_refused_with_the_names_of_all_tools() -> None:
    with pytest.raises(
        mixlist.MixlistError, match=r"no tool is called 'tensorrt'\n.*modelopt, ort, onnxconverter, atc"
    ):
        mixlist.export(SOURCE, policy(), "tensorrt")


def test_a_plan_needs_no_model_and_a_policy_needs_one() -> None:
    plan = mixlist.resolve(SOURCE, policy(black=["Exp"]))
    assert mixlist.export(None, plan, "ort").lists == mixlist.export(SOURCE, policy(black=["Exp"]), "ort").lists
    with pytest.raises(TypeError, match="model is None"):
        mixlist.export(None, policy(), "ort")
    with pytest.raises(TypeError, match="pass a Policy, such as"):
        mixlist.export(SOURCE, "modify.json", "ort")  # type: ignore[arg-type]
