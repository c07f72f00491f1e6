"""Options from a TOML file."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixlist.errors import FileError, ListError, MixlistError, UsageError
from mixlist.lists.config import COMMANDS, POLICY, load_config


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mixlist.toml"
    file.write_text(text, "utf-8")
    return file


def test_the_commands_table_wins_over_the_top(tmp_path: Path) -> None:
    text = 'constants = "ieee"\ngray-policy = "promote"\n[apply]\nconstants = "clamp"\nforce = true\n'
    text += '[resolve]\nformat = "csv"\n'
    file = write(tmp_path, text)
    assert load_config(file, "apply") == {"constants": "clamp", "gray_policy": "promote", "force": True}
    assert load_config(file, "resolve") == {"constants": "ieee", "gray_policy": "promote", "format": "csv"}
    assert load_config(file, "lists") == {"constants": "ieee", "gray_policy": "promote"}


def test_underscores_are_read_too(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, 'gray_policy = "promote"'), "apply") == {"gray_policy": "promote"}


def test_a_switch_that_is_on_by_default_can_be_named_either_way(tmp_path: Path) -> None:
    for text in ("[apply]\nno-keep-io-types = true", "[apply]\nkeep-io-types = false"):
        assert load_config(write(tmp_path, text), "apply") == {"keep_io_types": False}
    with pytest.raises(UsageError, match="no-keep-io-types is true or false"):
        load_config(write(tmp_path, '[apply]\nno-keep-io-types = "x"'), "apply")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_options_are_those_of_the_command_line(command: str) -> None:
    from mixlist.cli.config import by_key

    module = importlib.import_module(f"mixlist.cli.{command}")
    there = {key.replace("_", "-") for key in by_key(module.command)} - {"config"}
    assert there - POLICY == {key for key in COMMANDS[command] if not key.startswith("no-")}


def test_every_command_with_a_configuration_has_a_table() -> None:
    from mixlist.cli.index import COMMANDS as LINES

    modules = {name: importlib.import_module(f"mixlist.cli.{name.replace('-', '_')}") for name in LINES}
    taking = {name for name, module in modules.items() if any(p.name == "config" for p in module.command.params)}
    assert taking == COMMANDS.keys()


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    text = f'ops-info = "lib"\nmixlist = "lists/mix.json"\nkeep-dtype = "{tmp_path}/keep.cfg"\n'
    text += '[apply]\noutput = "out.onnx"\n'
    assert load_config(write(tmp_path, text), "apply") == {
        "ops_info": str(tmp_path / "lib"),
        "mixlist": str(tmp_path / "lists" / "mix.json"),
        "keep_dtype": str(tmp_path / "keep.cfg"),
        "output": str(tmp_path / "out.onnx"),
    }


def test_built_in_libraries_and_standard_input_are_no_paths(tmp_path: Path) -> None:
    text = 'ops-info = "ascend910b"\nmixlist = "-"\n'
    assert load_config(write(tmp_path, text), "lists") == {"ops_info": "ascend910b", "mixlist": "-"}
    assert load_config(write(tmp_path, 'ops-info = "acsend910b"'), "lists") == {"ops_info": "acsend910b"}


@pytest.mark.parametrize(
    ("text", "line", "says", "hint"),
    [
        ('\nmixlst = "a"', 2, "has no option 'mixlst'", "did you mean mixlist?"),
        ('[apply]\n\nkeepio = "x"', 3, "the command apply has no option 'keepio'", "keep-io"),
        ("[aply]\nforce = true", 1, "no command 'aply'", "did you mean apply?"),
        ("# x\nforce = true", 2, "no option of every command", "[apply]"),
        ("mixlist = 3", 1, "mixlist is a path", 'mixlist = "..."'),
        ('[lists]\nformat = "csv"\n[apply]\nforce = 2020-01-01', 4, "force is not a string", "force"),
        ("constants = { keep = true }", 1, "constants is not a string", "constants"),
        ("[[apply]]\nforce = true", 1, "apply", ""),
    ],
)
def test_what_is_no_option_has_a_line(tmp_path: Path, text: str, line: int, says: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        load_config(write(tmp_path, text), "lists")
    assert error.value.message.startswith(f"{tmp_path}/mixlist.toml:{line}: ")
    assert says in error.value.message
    assert hint in str(error.value.hint)


def test_syntax_errors_have_a_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mixlist\.toml:2:13: this is not TOML"):
        load_config(write(tmp_path, 'mixlist = "a"\nconstants = keep'), "lists")


def test_hostile_files_are_plain_errors(tmp_path: Path) -> None:
    for text in ("a = " + "[" * 5000, "a = " + "{a=" * 5000, "a." * 20000 + "a = 1", '"', "=", "a = 1\na = 2"):
        with pytest.raises(MixlistError):
            load_config(write(tmp_path, text), "lists")
    (tmp_path / "bytes.toml").write_bytes(b"mixlist = '\xff'")
    with pytest.raises(ListError, match=r"bytes\.toml:1:12"):
        load_config(tmp_path / "bytes.toml", "lists")
    with pytest.raises(FileError):
        load_config(tmp_path / "none.toml", "lists")


def test_an_empty_file_is_legal(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, ""), "lists") == {}


PIECES = ["[apply]", "[lists", "mixlist", " = ", '"x"', "\n", "true", "{", "}", "keep-io", "[", "]", ".", "3"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_options_or_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "mixlist.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert all(isinstance(key, str) for key in load_config(tmp_path / "mixlist.toml", "apply"))
    except MixlistError as error:
        assert "mixlist.toml" in error.message
