"""Before/after pairs, one small graph per rule: tests/golden/*.txt, the results written by hand from the rules.

A file: ``#`` lines say what it shows; then ``white:``, ``black:``, ``mode:``, ``gray-policy:``, ``constants:``,
``keep:`` (node names of a keep_dtype file) and ``io: free`` (``keep_io_types`` off); then the model after
``--- before``, the result after ``--- after`` (or the word ``same``), and after ``--- plan`` one line per node:
its name (with its scope), precision, rule, and the producer that it follows. In the models, ``[mixlist]`` marks
a Cast of mixlist's, and the numbers of float16 constants are values.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

import mixlist
from mixlist.lists.policy import Policy
from tests.support.builders import keep, model, policy
from tests.support.contract import check_contract, check_idempotent
from tests.support.normal_form import normal_form

FILES = sorted((Path(__file__).parent / "golden").glob("*.txt"))


@dataclass(frozen=True)
class Golden:
    """One file, read."""

    settings: dict[str, str]
    before: str
    after: str
    plan: str

    @property
    def policy(self) -> Policy:
        """The policy of the header."""
        said = self.settings
        return policy(
            white=said.get("white", "").split(),
            black=said.get("black", "").split(),
            mode=said.get("mode", "mixed_float16"),
            gray_policy=said.get("gray-policy", "ascend"),  # type: ignore[arg-type]
            constants=said.get("constants", "keep"),  # type: ignore[arg-type]
            rules=keep(*said.get("keep", "").split()),
        )

    @property
    def keep_io_types(self) -> bool:
        """Whether graph inputs and outputs keep their types."""
        return self.settings.get("io") != "free"

    def models(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Before and after."""
        return model(self.before), model(self.before if self.after.strip() == "same" else self.after)


def read(path: Path) -> Golden:
    """Read a golden file."""
    header, before, after, plan = _split(path.read_text(encoding="utf-8"))
    lines = [line for line in header.splitlines() if line and not line.startswith("#")]
    return Golden(dict(line.split(": ", 1) for line in lines), before, after, plan)


def _split(text: str) -> list[str]:
    parts = [text]
    for name in ("before", "after", "plan"):
        parts[-1:] = parts[-1].split(f"--- {name}\n")
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_result_is_the_written_one(path: Path) -> None:
    golden = read(path)
    before, after = golden.models()
    plan = mixlist.resolve(before, golden.policy)
    result = mixlist.rewrite(before, plan, keep_io_types=golden.keep_io_types).model
    assert normal_form(result) == normal_form(after)
    for candidate in (result, after):  # the written result is judged like the made one
        check_contract(before, candidate, plan, keep_io_types=golden.keep_io_types)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_applying_again_changes_nothing(path: Path) -> None:
    golden = read(path)
    before, _ = golden.models()

    def apply(m: onnx.ModelProto) -> onnx.ModelProto:
        return mixlist.rewrite(m, mixlist.resolve(m, golden.policy), keep_io_types=golden.keep_io_types).model

    check_idempotent(apply(before), apply)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_plan_is_the_written_one(path: Path) -> None:
    golden = read(path)
    found = {}
    for node in mixlist.resolve(golden.models()[0], golden.policy).to_json()["nodes"]:
        name = f"{node['scope']}/{node['name']}" if node["scope"] else node["name"]
        found[name] = [node["precision"], node["rule"], *node["follows"][:1]]
        assert node["reason"], name
    written = [line.split() for line in golden.plan.splitlines() if line.strip()]
    for name, precision, rule, *follows in written:
        actual = found[name] if follows else found[name][:2]
        wanted = [precision, rule, *follows]
        if precision == "-":  # a Cast or an op with a fixed type: the rules do not say
            actual, wanted = actual[1:], wanted[1:]
        assert actual == wanted, name


def test_there_is_a_pair_for_every_rule() -> None:
    assert len(FILES) >= 30
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in FILES)
