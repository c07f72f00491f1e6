"""The commands and outputs in the README, and the names in the hook file, are right."""

from __future__ import annotations

import re
from pathlib import Path

from mixlist.cli import main
from mixlist.cli.command_index import COMMANDS
from mixlist.files.package_data import data_folder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_explanation_in_the_readme_is_the_output_of_its_command(capsys, monkeypatch) -> None:
    (command, readme_output) = re.findall(r"```\n\$ mixlist (.+)\n((?:.+\n)+)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 0
    assert capsys.readouterr().out == readme_output


def test_the_check_in_the_readme_shows_lines_of_the_output_in_order(capsys, monkeypatch) -> None:
    """The README leaves out some lines of the output."""
    (command, readme_output) = re.findall(r"```\n\$ mixlist (check .+)\n((?:.*\n)+?)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 1
    lines = iter(capsys.readouterr().out.splitlines())
    missing = [line for line in readme_output.splitlines() if line not in lines]
    assert not missing


def test_the_search_in_the_readme_is_the_start_of_the_output(capsys, monkeypatch, tmp_path: Path) -> None:
    """The search writes a list, so it runs on a copy of the model."""
    (command, readme_output) = re.findall(r"```\n\$ mixlist (tune .+)\n((?:.*\n)+?)```", README)[0]
    (tmp_path / "digits.onnx").write_bytes((data_folder("demo_data") / "digits.onnx").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith(readme_output)
    assert (tmp_path / "modify.json").exists()


def test_the_estimate_in_the_readme_shows_lines_of_the_output_in_order(capsys, monkeypatch) -> None:
    (command, readme_output) = re.findall(r"```\n\$ mixlist (bench .+)\n((?:.*\n)+?)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 0
    lines = iter(capsys.readouterr().out.splitlines())
    missing = [line for line in readme_output.splitlines() if line not in lines]
    assert not missing


def test_every_command_in_the_readme_and_the_hooks_exists() -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    command_names = re.findall(r"(?:run:|^|entry:) *mixlist ([a-z-]+)", README + hooks, re.MULTILINE)
    assert {"validate", "resolve", "apply", "fmt"} <= set(command_names) <= set(COMMANDS)


def test_the_hook_matches_the_names_of_list_files() -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    pattern = re.compile(re.findall(r"id: mixlist-validate\n(?:.*\n)*?  files: (.+)", hooks)[0])
    for name in (
        "lists/modify_mixlist.json",
        "mixlist.json",
        "aic-ascend910b-ops-info.json",
        "a/modify_mixlist_v2.json",
        "keep_dtype.txt",
        "a/customize_dtypes_910b.cfg",
    ):
        assert pattern.search(name), name
    assert not pattern.search("package.json")


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make ([a-z]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_training_in_the_readme_shows_lines_of_the_output_in_order(capsys, monkeypatch) -> None:
    (command, readme_output) = re.findall(r"```\n\$ mixlist (train .+)\n((?:.*\n)+?)```", README)[0]
    monkeypatch.chdir(data_folder("demo_data"))
    assert main(command.split()) == 1
    lines = iter(capsys.readouterr().out.splitlines())
    missing = [line for line in readme_output.splitlines() if line not in lines]
    assert not missing
