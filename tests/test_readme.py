"""What the README and the hook file show is what happens."""

from __future__ import annotations

import re
from pathlib import Path

from mixlist.cli import main
from mixlist.cli.command_index import COMMANDS
from mixlist.files.package_data import data_folder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_explained_node(capsys, monkeypatch) -> None:
    (command, shown) = re.findall(r"```\n\$ mixlist (.+)\n((?:.+\n)+)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 0
    assert capsys.readouterr().out == shown


def test_the_check(capsys, monkeypatch) -> None:
    """The README leaves lines out; those that it shows are there, in order."""
    (command, shown) = re.findall(r"```\n\$ mixlist (check .+)\n((?:.*\n)+?)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 1
    lines = iter(capsys.readouterr().out.splitlines())
    missing = [line for line in shown.splitlines() if line not in lines]
    assert not missing


def test_the_search(capsys, monkeypatch, tmp_path: Path) -> None:
    """It writes its list, so it runs on a copy of the model."""
    (command, shown) = re.findall(r"```\n\$ mixlist (tune .+)\n((?:.*\n)+?)```", README)[0]
    (tmp_path / "digits.onnx").write_bytes((data_folder("demo_data") / "digits.onnx").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith(shown)
    assert (tmp_path / "modify.json").exists()


def test_the_estimate(capsys, monkeypatch) -> None:
    (command, shown) = re.findall(r"```\n\$ mixlist (bench .+)\n((?:.*\n)+?)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 0
    lines = iter(capsys.readouterr().out.splitlines())
    missing = [line for line in shown.splitlines() if line not in lines]
    assert not missing


def test_every_command_named_exists() -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    named = re.findall(r"(?:run:|^|entry:) *mixlist ([a-z-]+)", README + hooks, re.MULTILINE)
    assert {"validate", "resolve", "apply", "fmt"} <= set(named) <= set(COMMANDS)


def test_the_hook_finds_lists() -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    pattern = re.compile(re.findall(r"id: mixlist-validate\n(?:.*\n)*?  files: (.+)", hooks)[0])
    for name in (
        "lists/modify_mixlist.json",
        "mixlist.json",
        "aic-ascend910b-ops-info.json",
        "a/modify_mixlist_v2.json",
    ):
        assert pattern.search(name), name
    assert not pattern.search("package.json")


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make ([a-z]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_training(capsys, monkeypatch) -> None:
    (command, shown) = re.findall(r"```\n\$ mixlist (train .+)\n((?:.*\n)+?)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 1
    lines = iter(capsys.readouterr().out.splitlines())
    missing = [line for line in shown.splitlines() if line not in lines]
    assert not missing
