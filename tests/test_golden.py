"""Golden files: tests/golden/apply, check and tune; the expected results are written by hand from the rules.

``apply``: ``--- before`` is the model, ``--- after`` the rewritten model (or the word ``same``), ``--- plan`` one line
per node: its name with its scope, precision, rule, and the producer that it follows. In models, ``[mixlist]`` marks
a Cast of mixlist, and numbers of float16 constants are values. The setting ``io: free`` turns ``keep_io_types`` off.

``check``: ``--- model``, ``--- batches``, ``--- findings``: the verdict, the exception rate, one line per node with
its kind of finding (``first`` marks a first offender), and one line ``output NAME LIMIT ...`` per output that misses
limits.

``tune``: ``--- model``, ``--- batches``, ``--- list``: the verdict, and one line ``OP BEFORE AFTER`` per edit, or
``OP NODE BEFORE AFTER`` per node rule.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import mixlist
from tests.support.builders import model
from tests.support.contract import check_contract, check_idempotent
from tests.support.golden_file import GoldenFile, golden_files, read_golden
from tests.support.local_workers import Here
from tests.support.normal_form import normal_form

FOLDERS = {"apply": 30, "check": 12, "tune": 6}  # the least number of files in each
FILES = golden_files("apply")


def models(golden: GoldenFile) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The model before and after."""
    before, after = golden.sections["before"], golden.sections["after"]
    return model(before), model(before if after.strip() == "same" else after)


def keeps_io_types(golden: GoldenFile) -> bool:
    """Whether graph inputs and outputs keep their types."""
    return golden.settings.get("io") != "free"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_result_is_the_written_one(path: Path) -> None:
    golden = read_golden(path)
    before, after = models(golden)
    plan = mixlist.resolve(before, golden.policy)
    result = mixlist.rewrite(before, plan, keep_io_types=keeps_io_types(golden)).model
    assert normal_form(result) == normal_form(after)
    for candidate in (result, after):  # the written result is judged like the made one
        check_contract(before, candidate, plan, keep_io_types=keeps_io_types(golden))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_applying_again_changes_nothing(path: Path) -> None:
    """Rule S7.9: The same input gives the same bytes."""
    golden = read_golden(path)
    before, _ = models(golden)

    def apply(m: onnx.ModelProto) -> onnx.ModelProto:
        return mixlist.rewrite(m, mixlist.resolve(m, golden.policy), keep_io_types=keeps_io_types(golden)).model

    check_idempotent(apply(before), apply)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_plan_is_the_written_one(path: Path) -> None:
    golden = read_golden(path)
    found = {}
    for node in mixlist.resolve(models(golden)[0], golden.policy).to_json()["nodes"]:
        name = f"{node['scope']}/{node['name']}" if node["scope"] else node["name"]
        found[name] = [node["precision"], node["rule"], *node["follows"][:1]]
        assert node["reason"], name
    written = [line.split() for line in golden.sections["plan"].splitlines() if line.strip()]
    for name, precision, rule, *follows in written:
        actual = found[name] if follows else found[name][:2]
        wanted = [precision, rule, *follows]
        if precision == "-":  # a Cast or an op with a fixed type: the rules do not say
            actual, wanted = actual[1:], wanted[1:]
        assert actual == wanted, name


@pytest.mark.parametrize("path", golden_files("check"), ids=lambda p: p.stem)
def test_the_findings_are_the_written_ones(path: Path) -> None:
    golden = read_golden(path)
    report = mixlist.check(
        model(golden.sections["model"]),
        golden.policy,
        golden.batches(),
        overflow_mode=golden.settings.get("overflow-mode", "inf"),
        max_exception_rate=float(golden.settings.get("max-exception-rate", 0.005)),
        full_statistics=golden.settings.get("full-statistics") == "yes",
    )
    found = [f"verdict {report.verdict}", f"exception-rate {report.exception_rate:g}"]
    for node in report.nodes:
        name = f"{node.scope}/{node.name}" if node.scope else node.name
        found.append(f"{name} {node.kind}{' first' * node.first}{f' reads {node.input}' if node.input else ''}")
    found += [f"output {o.name} {' '.join(o.failed_limits)}" for o in report.outputs if not o.passed]
    assert sorted(found) == sorted(golden.lines("findings"))


@pytest.mark.parametrize("path", golden_files("tune"), ids=lambda p: p.stem)
def test_the_list_is_the_written_one(path: Path) -> None:
    golden = read_golden(path)
    report = mixlist.tune(
        model(golden.sections["model"]),
        golden.policy,
        golden.batches(),
        objective=golden.settings.get("objective", "min-edits"),  # type: ignore[arg-type]
        node_rules=golden.settings.get("node-rules") == "yes",
        executor=Here(),
    )
    found = [f"verdict {report.verdict}"]
    found += [" ".join(filter(None, (e.op, e.node, e.before, e.after))) for e in report.edits]
    assert sorted(found) == sorted(golden.lines("list"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_there_are_enough_golden_files_and_each_says_what_it_shows(folder: str) -> None:
    files = golden_files(folder)
    assert len(files) >= FOLDERS[folder]
    assert all(read_golden(path).comment for path in files)
