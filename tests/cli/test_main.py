"""Test what all commands share: help, version, streams, exit statuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest

from mixlist import __version__
from mixlist.cli import error_output
from mixlist.cli.command_index import COMMANDS, help_text, load_command
from mixlist.errors import FileError, ModelError, UsageError

MIXLIST = [sys.executable, "-m", "mixlist"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_index_can_be_loaded(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert command.help  # the help text of the command, not the line of the index


def test_every_module_of_a_command_is_in_the_index() -> None:
    folder = Path(import_module("mixlist.cli").__file__ or "").parent
    command_modules = {path.stem for path in folder.glob("*.py") if "\ndef command(" in path.read_text("utf-8")}
    assert command_modules == {name.replace("-", "_") for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_help_has_an_example(run, name: str, flag: str) -> None:
    completed = run(name, flag)
    assert completed.status == 0
    assert completed.err == ""
    assert "Example:\n" in completed.out
    assert f"\n    mixlist {name}" in completed.out


def test_help_is_the_same_with_and_without_click(run) -> None:
    assert run("--help").out == run("-h").out == help_text()
    assert run("--help", "apply").out == help_text(), "through click"


def test_a_call_without_arguments_shows_the_help_as_wrong_usage(run) -> None:
    completed = run()
    assert (completed.status, completed.out, completed.err) == (2, "", help_text())


def test_version_is_printed(run) -> None:
    assert run("--version").out == f"mixlist {__version__}\n" == run("--version", "x").out


def test_help_imports_no_click() -> None:
    code = "import sys, mixlist.cli; mixlist.cli.main(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(eval(out.splitlines()[-1]))
    assert not loaded & {"click", "onnx", "numpy", "rich", "jsonschema", "mixlist.cli.command_group"}


def test_an_unknown_command_has_a_hint_with_the_most_similar_one(run) -> None:
    completed = run("aply", "x.onnx")
    assert completed.status == 2
    assert "No such command 'aply'. Did you mean 'apply'?" in completed.err
    assert completed.out == ""


def test_an_option_of_another_command_is_named_with_it(run) -> None:
    completed = run("resolve", "m.onnx", "--inline-functions")
    assert completed.status == 2
    assert "No such option '--inline-functions': it is an option of apply." in completed.err
    assert "it is an option of apply, convert, repair and export." in run("resolve", "m.onnx", "--io", "low").err
    opset = "it is an option of apply and convert, which alone change the opset of a model."
    assert opset in run("resolve", "m.onnx", "--opset", "22").err
    mode = "it is an option of convert; here, use --precision-mode-v2 mixed_bfloat16."
    assert mode in run("check", "m.onnx", "--type", "bfloat16").err
    assert "No such option '--type': it is an option of convert." in run("presets", "--type", "bfloat16").err
    assert "Did you mean" not in completed.err
    assert "--precision" in run("resolve", "m.onnx", "--presision").err


def test_an_option_without_a_similar_one_has_a_hint_at_the_help(run) -> None:
    for option in ("--output", "--nowhere"):  # an option of many commands, and of none
        error = run("check", "m.onnx", option, "x").err
        assert f"No such option '{option}'. 'mixlist check --help-all' lists the options." in error


def test_unknown_option_and_missing_argument_are_wrong_usage(run) -> None:
    assert run("lists", "--nothing").status == 2
    assert run("--nothing").status == 2
    assert run("validate").status == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(run, shell: str) -> None:
    completed = run("completion", shell)
    assert completed.status == 0
    assert "_MIXLIST_COMPLETE" in completed.out


def test_completion_completes_command_names() -> None:
    env = {**os.environ, "_MIXLIST_COMPLETE": "bash_complete", "COMP_WORDS": "mixlist va", "COMP_CWORD": "1"}
    completed = subprocess.run(MIXLIST, env=env, capture_output=True, text=True, check=False)
    assert "plain,validate" in completed.stdout.split()


def test_a_closed_pipe_is_no_error() -> None:
    command = subprocess.list2cmdline([*MIXLIST, "lists", "--format", "csv"])
    script = f"set -o pipefail; {command} | true; echo ${{PIPESTATUS[0]}}"
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert completed.stderr == ""
    assert completed.stdout.strip() in ("0", "141"), "0 where the output fitted into the pipe before it closed"


def test_closed_streams_are_no_error() -> None:
    command = subprocess.list2cmdline([*MIXLIST, "presets"])
    completed = subprocess.run(["bash", "-c", f"{command} >&- 2>&-"], check=False)
    assert completed.returncode == 0


@pytest.mark.parametrize("arguments", [["presets"], ["--version"], ["lists", "--format=json"]], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_reported(arguments: list[str]) -> None:
    """The text of some commands fits into the buffer, that of others does not."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full_device:
        completed = subprocess.run(
            [*MIXLIST, *arguments], stdout=full_device, stderr=subprocess.PIPE, text=True, check=False
        )
    assert completed.returncode == 2
    assert completed.stderr == "mixlist: error: standard output: No space left on device\n"


def test_ctrl_c_ends_a_command_with_status_130() -> None:
    # A background job's children ignore the signal, while a command that a user's shell starts does not.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from mixlist.cli import main;"
        "print('ready', flush=True); sys.exit(main(['validate', '-']))"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stderr
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            err = process.stderr.read()
        finally:
            process.kill()
    assert "Traceback" not in err
    assert "interrupted" in err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_text_can_be_printed(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "modify.json"
    file.write_text('{"black-list": {"to-add": ["Öp-\\u2603"]}}', encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    for output_format in ("text", "json", "csv"):
        completed = subprocess.run(
            [*MIXLIST, "lists", "--mixlist", str(file), "--format", output_format],
            env=env,
            capture_output=True,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        assert (b"\\u2603" in completed.stdout) == (encoding == "ascii")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UsageError("a and b", hint="only a"), 2, "mixlist: error: a and b\n  hint: only a\n"),
        (FileError("x: no such file"), 2, "mixlist: error: x: no such file\n"),
        (ModelError("two\nlines"), 2, "mixlist: error: two lines\n"),
        (FileError("a\x1b[31m"), 2, "mixlist: error: a\\x1b[31m\n"),
        (OSError(28, "No space left on device", "/x"), 2, "mixlist: error: /x: No space left on device\n"),
        (MemoryError(), 2, "mixlist: error: not enough memory for this input\n"),
        (click.UsageError("bad"), 2, "Error: bad\n"),
    ],
)
def test_each_error_has_a_status_and_a_message(capsys, error: Exception, status: int, text: str) -> None:
    assert error_output.report_error(error) == status
    assert capsys.readouterr().err == text


def test_a_bug_asks_to_be_reported(capsys, monkeypatch) -> None:
    monkeypatch.setattr("mixlist.cli._dispatch", lambda args: [][1])
    from mixlist.cli import main

    assert main(["presets"]) == 3
    err = capsys.readouterr().err
    assert f"this is a bug in mixlist {__version__}: IndexError: list index out of range at test_main.py:" in err
    assert "please report it" in err
    assert "Traceback" not in err
    monkeypatch.setenv("MIXLIST_DEBUG", "1")
    assert main(["presets"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_an_import_that_ctrl_c_ends_is_no_bug(capsys, monkeypatch) -> None:
    """A module in C turns the interruption of its import into an ImportError."""

    def dispatch(args: list[str]) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            if args == ["raised from"]:
                raise ImportError("initialization failed") from error
            raise ImportError("initialization failed")  # noqa: B904 - as an import in C does

    monkeypatch.setattr("mixlist.cli._dispatch", dispatch)
    from mixlist.cli import main

    for arguments in (["raised from"], ["raised while handling"]):
        assert main(arguments) == 130
        assert capsys.readouterr().err == "\nmixlist: interrupted\n"
