"""Golden files: tests/golden/apply, check and tune; the expected results are written by hand from the rules.

``apply``: ``--- before`` is the model, ``--- after`` the rewritten model (or the word ``same``), ``--- plan`` one line
per node: its name with its scope, precision, rule, and the producer that it follows. In models, ``[mixlist]`` marks
a Cast of mixlist, and numbers of float16 constants are values. The setting ``io`` is that option.

``check``: ``--- model``, ``--- batches``, ``--- findings``: the verdict, the exception rate, one line per node with
its kind of finding (``first`` marks a first offender), and one line ``output NAME LIMIT ...`` per output that misses
limits.

``tune``: ``--- model``, ``--- batches``, ``--- list``: the verdict, and one line ``OP BEFORE AFTER`` per edit, or
``OP NODE BEFORE AFTER`` per node rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import mixlist
from tests.support.builders import model
from tests.support.contract import check_contract, check_idempotent
from tests.support.golden_file import GoldenFile, golden_files, read_golden
from tests.support.local_workers import InProcessExecutor
from tests.support.normal_form import normal_form

FOLDERS = {"apply": 30, "check": 12, "tune": 5}  # the least number of files in each
FILES = golden_files("apply")


def models(golden: GoldenFile) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the model before, and the expected one after."""
    before, after = golden.sections["before"], golden.sections["after"]
    return model(before), model(before if after.strip() == "same" else after)


def io_of(golden: GoldenFile) -> Any:
    """Return the option ``io``."""
    return golden.settings.get("io", "keep")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_rewritten_model_equals_the_one_in_the_file(path: Path) -> None:
    golden = read_golden(path)
    before, after = models(golden)
    plan = mixlist.resolve(before, golden.policy, io=io_of(golden))
    result = mixlist.rewrite(before, plan).model
    assert normal_form(result) == normal_form(after)
    for candidate in (result, after):  # the result in the file must keep the promises, too
        check_contract(before, candidate, plan, io=io_of(golden))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_applying_again_changes_nothing(path: Path) -> None:
    """Rule S7.9: The same input gives the same bytes."""
    golden = read_golden(path)
    before, _ = models(golden)

    def apply(m: onnx.ModelProto) -> onnx.ModelProto:
        return mixlist.rewrite(m, mixlist.resolve(m, golden.policy, io=io_of(golden))).model

    check_idempotent(apply(before), apply)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_plan_equals_the_one_in_the_file(path: Path) -> None:
    golden = read_golden(path)
    fields_by_name = {}
    for node in mixlist.resolve(models(golden)[0], golden.policy).to_json()["nodes"]:
        name = f"{node['scope']}/{node['name']}" if node["scope"] else node["name"]
        fields_by_name[name] = [node["precision"], node["rule"], *node["follows"][:1]]
        assert node["reason"], name
    expected_lines = [line.split() for line in golden.sections["plan"].splitlines() if line.strip()]
    for name, precision, rule, *follows in expected_lines:
        actual = fields_by_name[name] if follows else fields_by_name[name][:2]
        expected = [precision, rule, *follows]
        if precision == "-":  # a Cast or an op with a fixed type: the rules do not say
            actual, expected = actual[1:], expected[1:]
        assert actual == expected, name


@pytest.mark.parametrize("path", golden_files("check"), ids=lambda p: p.stem)
def test_the_findings_equal_those_in_the_file(path: Path) -> None:
    golden = read_golden(path)
    report = mixlist.check(
        model(golden.sections["model"]),
        golden.policy,
        golden.batches(),
        overflow_mode=golden.settings.get("overflow-mode", "inf"),
        max_exception_rate=float(golden.settings.get("max-exception-rate", 0.005)),
        inner_type=golden.settings.get("inner-type", "float32"),
    )
    actual_lines = [f"verdict {report.verdict}", f"exception-rate {report.exception_rate:g}"]
    for node in report.nodes:
        name = f"{node.scope}/{node.name}" if node.scope else node.name
        actual_lines.append(f"{name} {node.kind}{' first' * node.first}{f' reads {node.input}' if node.input else ''}")
    actual_lines += [f"output {o.name} {' '.join(o.failed_limits)}" for o in report.outputs if not o.passed]
    assert sorted(actual_lines) == sorted(golden.lines("findings"))


@pytest.mark.parametrize("path", golden_files("tune"), ids=lambda p: p.stem)
def test_the_edits_equal_those_in_the_file(path: Path) -> None:
    golden = read_golden(path)
    report = mixlist.tune(
        model(golden.sections["model"]),
        golden.policy,
        golden.batches(),
        executor=InProcessExecutor(),
    )
    actual_lines = [f"verdict {report.verdict}"]
    actual_lines += [f"{e.op} {e.before} black" for e in report.edits]
    assert sorted(actual_lines) == sorted(golden.lines("list"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_has_enough_golden_files_and_each_has_a_comment(folder: str) -> None:
    files = golden_files(folder)
    assert len(files) >= FOLDERS[folder]
    assert all(read_golden(path).comment for path in files)
