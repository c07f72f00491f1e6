"""The commands that reports and pages print run as they are, and every report says what to do next."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from itertools import takewhile
from pathlib import Path

import pytest

from mixlist.files import package_data
from mixlist.show.document import Step
from tests.support.extras import import_extra

DATA = ("--random", 2, "--dim", "batch=16", "--range", "pixels=0:16")
# A policy that needs all of its options: without one of them, the decisions differ.
POLICY = (
    *("--ops-info", "mindspore-o3", "--mixlist", "my lists/edits.json", "--keep-dtype", "my lists/keep.txt"),
    *("--customize-dtypes", "my lists/types.txt", "--gray-policy", "promote", "--type-hints", "my lists/hints.json"),
)
_LOOP = """
import torch

def run(seed, scaler):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), {lr})
    for _ in range(20):
        loss = (model(torch.full((8, 4), {value})) ** 2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return float(loss.detach())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with the bundled model and lists in a folder whose name has a blank."""
    shutil.copy(package_data.data_folder("demo_data") / "digits.onnx", tmp_path / "my digits.onnx")
    lists = tmp_path / "my lists"
    lists.mkdir()
    (lists / "edits.json").write_text('{"black-list": {"to-add": ["Div"]}}')
    (lists / "keep.txt").write_text("OpType::ReduceSum\n")
    (lists / "types.txt").write_text("/fc1/MatMul::InputDtype:float32,OutputDtype:float32\n")
    (lists / "hints.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def next_commands(text: str) -> list[str]:
    """Return the commands under What to do next in a report, which is not empty."""
    _, found, steps = text.rpartition("What to do next\n")
    assert found and steps.strip()
    assert not re.search(r"\b(MODEL|FILE|RULES|OUT|DIR)\b", steps)
    return [line.strip() for line in steps.splitlines() if line.startswith("    mixlist ")]


def commands_of_page(path: Path) -> list[str]:
    """Return the commands under What to do next in a page."""
    section = re.search(r'<section id="next">.*?</section>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert section is not None
    commands = re.findall(r"<pre>(mixlist .*?)</pre>", section[0])
    return [html.unescape(re.sub("</?span[^>]*>", "", command)) for command in commands]


def run_printed(run, command: str, statuses: tuple[int, ...] = (0,)) -> str:
    """Run a command as a shell would; return what it prints."""
    command, _, output = command.partition(" > ")
    words = shlex.split(command)
    assert words[0] == "mixlist"
    completed = run(*words[1:])
    assert completed.status in statuses, (command, completed.err)
    if output:
        Path(output).write_text(completed.out)
    return str(completed.out)


def test_the_commands_after_a_check_that_passes(run, folder: Path) -> None:
    """A file that exists is not the output of a printed command."""
    (folder / "mixed.onnx").write_text("another file")
    completed = run("check", "my digits.onnx", *POLICY, *DATA, "--html", "page.html")
    assert completed.status == 0, completed.out
    (command,) = next_commands(completed.out)
    assert commands_of_page(folder / "page.html") == [command]
    run_printed(run, command)
    counts = json.loads(run("resolve", "my digits.onnx", *POLICY, "--format", "json").out)["counts"]
    written = run("resolve", "mixed-2.onnx", "--precision-mode-v2", "origin", "--format", "json").out
    low = {node["name"] for node in json.loads(written)["nodes"] if "float16" in node["outputs"].values()}
    assert len(low) >= counts["float16"] > 0


def test_after_a_check_under_the_lists_of_a_chip_come_the_files_for_its_compiler(run, folder: Path) -> None:
    completed = run("check", "my digits.onnx", "--ops-info", "ascend910b", "--mixlist", "my lists/edits.json", *DATA)
    assert completed.status == 0, completed.out
    (command,) = next_commands(completed.out)
    assert "--mixlist 'my lists/edits.json'" in command and command.endswith("--for atc -o atc_lists")
    assert run_printed(run, command).startswith("export SOC_VERSION=...  # the name of the chip\nsh atc_lists/atc.sh\n")
    assert (folder / "atc_lists" / "atc.sh").exists()


def test_the_commands_after_a_check_that_fails_and_a_search(run, folder: Path) -> None:
    completed = run("check", "my digits.onnx", "--ops-info", "mindspore-o3", *DATA)
    assert completed.status == 1
    search, page = next_commands(completed.out)
    assert run(*shlex.split(page)[1:]).status == 1
    assert "<iframe" in (folder / "check.html").read_text("utf-8")
    found = run_printed(run, search)
    (apply,) = next_commands(found)
    assert "--mixlist modify.json" in apply
    run_printed(run, apply)
    completed = run("check", "my digits.onnx", "--mixed-model", "mixed.onnx", *DATA)
    assert completed.status == 0 and next_commands(completed.out) == []


def test_the_commands_after_a_search_that_keeps_nothing_low(run, folder: Path) -> None:
    limits = ("--max-normalized-error", "1e-9", "--keep-dtype", "my lists/keep.txt")
    completed = run("tune", "my digits.onnx", "-o", "modify.json", *DATA, *limits)
    assert completed.status == 1
    (command,) = next_commands(completed.out)
    assert command.startswith("mixlist convert ") and command.endswith("-o mixed.onnx")
    converted = run(*shlex.split(command)[1:])
    assert converted.status == 1 and "every choice of low nodes that was tried misses a limit" in converted.out


def test_the_commands_after_a_benchmark_and_an_estimate(run, folder: Path) -> None:
    options = ("--rounds", 3, "--html", "page.html")
    completed = run("bench", "my digits.onnx", *POLICY, *DATA, *options)
    assert completed.status == 0
    commands = commands_of_page(folder / "page.html")
    assert next_commands(completed.out) == commands and any("--estimate" in command for command in commands)
    for command in commands:
        run_printed(run, command if "--estimate" in command else f"{command} --rounds 3")
    completed = run("bench", "my digits.onnx", "--dim", "batch=4", "--estimate", *POLICY)
    (command,) = next_commands(completed.out)
    # The estimate is for another device: a bench on this CPU would only recommend the estimate again.
    assert command.startswith("mixlist bench ") and command.endswith("--random 1 --provider cuda")
    run_printed(run, command.replace("cuda", "cpu --rounds 3"))


def test_the_commands_after_a_repair(run, folder: Path) -> None:
    assert run("apply", "my digits.onnx", "-o", "half.onnx", "--precision-mode-v2", "fp16").status == 0
    completed = run("repair", "half.onnx", "-o", "repaired.onnx", *DATA, "--type-hints", "my lists/hints.json")
    assert completed.status == 0
    check, command = next_commands(completed.out)
    assert run_printed(run, check).startswith("PASS  repaired.onnx against half.onnx")
    assert run_printed(run, f"{command} --rounds 3").count("repaired.onnx")
    completed = run("repair", "repaired.onnx", "-o", "again.onnx", *DATA)
    assert next_commands(completed.out) == [] and "can be used as it is" in completed.out


def test_the_commands_after_a_diff(run, folder: Path) -> None:
    sides = ("onnx", "mindspore-o3", "--base-protect", "none", "--other-protect", "none")
    sides = (*sides, "--base-constants", "keep", "--other-constants", "keep")
    completed = run("diff", *sides, "--model", "my digits.onnx", "--html", "page.html")
    commands = next_commands(completed.out)
    assert commands == commands_of_page(folder / "page.html") and len(commands) == 2
    for command in commands:
        run_printed(run, command)
    assert (folder / "view.html").exists()
    run("diff", *sides, "--html", "page.html")
    (command,) = commands_of_page(folder / "page.html")
    assert json.loads(run_printed(run, command)) == json.loads((folder / "modify.json").read_text())


@pytest.mark.parametrize(
    ("value", "options", "printed"),
    [
        # The scale never changes, and every step has an exception: no measured gradient proposes another scale.
        ("1e-4", ("--loss-scaler", "fixed"), []),
        # No loss scale helps.
        ("3e4", (), ["--mixlist modify.json", "--precision-mode-v2 mixed_bfloat16 --loss-scaler none"]),
        ("0.5", (), []),
    ],
)
def test_the_commands_after_a_training(
    run, folder: Path, value: str, options: tuple[object, ...], printed: list[str]
) -> None:
    import_extra("torch")
    lr = "1e-10" if value == "3e4" else "1e-3"  # with which float32 learns
    (folder / "my loop.py").write_text(_LOOP.format(value=value, lr=lr))
    scale = ("--scaler-arg", "loss_scale=1e6") if options else ()
    completed = run("train", "my loop.py:run", *options, *scale, "--first-seed", 3, "--html", "page.html")
    commands = next_commands(completed.out)
    assert commands == commands_of_page(folder / "page.html")
    given = " ".join(map(str, (*options, "--first-seed", 3)))
    assert commands == [f"mixlist train 'my loop.py:run' {given} {added}" for added in printed]
    shown = completed.out.partition("such as modify.json, keeps them in float32:\n")[2].splitlines()
    (folder / "modify.json").write_text("\n".join(takewhile(lambda line: line.startswith("    "), shown)))
    for command in commands:
        run_printed(run, command, (0, 1))


def test_a_report_from_python_has_no_command_without_the_options_of_the_run(folder: Path) -> None:
    import mixlist
    from mixlist.show.check_document import check_document

    batches = mixlist.random_batches("my digits.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
    report = mixlist.check("my digits.onnx", mixlist.load_policy(mixlist="my lists/edits.json"), batches)
    assert check_document(report).steps == (Step("The mixed model keeps every limit on this data, and can be used."),)
