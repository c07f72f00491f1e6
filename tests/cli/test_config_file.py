"""Options from a TOML file."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixlist.cli.command_index import COMMANDS, load_command
from mixlist.cli.config_file import POLICY_KEYS, read_config
from mixlist.errors import FileError, ListError, MixlistError, UsageError

CONFIGURABLE = ["validate", "lists", "resolve", "view", "apply", "export", "diff"]
CONFIGURABLE += ["convert", "check", "bench", "tune", "repair", "train"]
POLICY = ["ops-info", "mixlist", "precision-mode", "precision-mode-v2", "keep-dtype", "customize-dtypes", "op-names"]
POLICY += ["gray-policy", "constants", "protect"]


def load_config(path: Path, command: str) -> dict[str, object]:
    return read_config(path, click.Context(load_command(command)))


def write_config(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mixlist.toml"
    file.write_text(text, "utf-8")
    return file


def test_the_table_of_a_command_replaces_options_at_the_top(tmp_path: Path) -> None:
    text = 'constants = "ieee"\ngray-policy = "promote"\n[apply]\nconstants = "clamp"\ninline-functions = true\n'
    text += '[resolve]\nformat = "csv"\n'
    file = write_config(tmp_path, text)
    assert load_config(file, "apply") == {"constants": "clamp", "gray_policy": "promote", "inline_functions": True}
    assert load_config(file, "resolve") == {"constants": "ieee", "gray_policy": "promote", "output_format": "csv"}
    assert load_config(file, "lists") == {"constants": "ieee", "gray_policy": "promote"}


def test_underscores_are_read_too(tmp_path: Path) -> None:
    assert load_config(write_config(tmp_path, 'gray_policy = "promote"'), "apply") == {"gray_policy": "promote"}


def test_a_switch_that_is_on_by_default_can_be_named_either_way(tmp_path: Path) -> None:
    for text in ("[tune]\nno-holdout = true", "[tune]\nholdout = false"):
        assert load_config(write_config(tmp_path, text), "tune") == {"holdout": False}
    with pytest.raises(UsageError, match="no-holdout takes true or false"):
        load_config(write_config(tmp_path, '[tune]\nno-holdout = "x"'), "tune")


def _value_of(option: click.Option) -> str:
    """Return a value that the option can have, as TOML."""
    if option.is_flag:
        return "true"
    if isinstance(option.type, click.Choice):
        return f'"{option.type.choices[0]}"'
    is_number = isinstance(option.type, click.types.FloatParamType | click.types.IntParamType)
    return "1" if is_number else '"/x"'


# The options of all commands that run code, write files or replace them.
CODE = {"judge": "runs code", "loader": "runs code", "scheduler": "can run code"}
OUTPUTS = {"output", "rules", "report", "html", "state", "tensorboard"}
UNSAFE = {**CODE, **dict.fromkeys(OUTPUTS, "writes files"), "force": "replaces files", "fix": "replaces files"}


@pytest.mark.parametrize("command", CONFIGURABLE)
def test_a_configuration_names_no_code_and_no_outputs(tmp_path: Path, command: str) -> None:
    """A pull request can bring a configuration, and anyone can own a file in a folder above the working folder."""
    options = [parameter for parameter in load_command(command).params if isinstance(parameter, click.Option)]
    for option in options:
        name = next(spelling[2:] for spelling in option.opts if spelling.startswith("--"))
        assert name in UNSAFE or getattr(option.type, "use", "reads").startswith("reads"), name
        if name in UNSAFE:
            with pytest.raises(UsageError) as error:
                load_config(write_config(tmp_path, f"[{command}]\n{name} = {_value_of(option)}"), "lists")
            assert f"mixlist.toml:2: {name} {UNSAFE[name]}, so a configuration cannot set it" in error.value.message
            assert error.value.hint == f"give --{name} on the command line"


@pytest.mark.parametrize("command", CONFIGURABLE)
def test_a_table_takes_every_other_option_of_its_command_and_of_a_policy(tmp_path: Path, command: str) -> None:
    own = [parameter for parameter in load_command(command).params if isinstance(parameter, click.Option)]
    for option in own:
        for spelling in (*option.opts, *option.secondary_opts):
            if spelling.startswith("--") and option.name != "config" and spelling[2:] not in UNSAFE:
                text = f"[{command}]\n{spelling[2:]} = {_value_of(option)}"
                ((name, value),) = load_config(write_config(tmp_path, text), command).items()
                assert name == option.name
                assert value is not None and (value is False) == (spelling in option.secondary_opts)
    for key in POLICY:  # a command without this option of a policy ignores it
        text = f"[{command}]\n{key} = {_value_of(POLICY_KEYS[key])}"
        assert load_config(write_config(tmp_path, text), command).keys() <= {option.name for option in own}
    with pytest.raises(UsageError, match=f"the command {command} has no option 'config'"):
        load_config(write_config(tmp_path, f'[{command}]\nconfig = "x"'), command)


@pytest.mark.parametrize("key", POLICY)
def test_the_top_takes_the_options_of_a_policy(tmp_path: Path, key: str) -> None:
    name = key.replace("-", "_")
    for command in CONFIGURABLE:
        values = load_config(write_config(tmp_path, f"{key} = {_value_of(POLICY_KEYS[key])}"), command)
        own = {option.name for option in load_command(command).params}
        sides = {f"base_{name}", f"other_{name}"} & own
        assert values.keys() == (({name} & own) or sides)


def test_both_sides_of_diff_have_the_options_of_the_top_unless_they_have_their_own(tmp_path: Path) -> None:
    text = 'protect = "none"\nmixlist = "m.json"\n[diff]\nother-protect = "masks"\n'
    values = load_config(write_config(tmp_path, text), "diff")
    lists = str(tmp_path / "m.json")
    sides = {"base_protect": "none", "other_protect": "masks", "base_mixlist": lists, "other_mixlist": lists}
    assert values == sides
    values = load_config(write_config(tmp_path, '[diff]\nbase-constants = "ieee"\nconstants = "clamp"\n'), "diff")
    assert values == {"base_constants": "ieee", "other_constants": "clamp"}


def test_every_command_with_a_configuration_has_a_table(tmp_path: Path) -> None:
    configurable = {name for name in COMMANDS if any(p.name == "config" for p in load_command(name).params)}
    assert configurable == set(CONFIGURABLE)
    for name in COMMANDS.keys() - configurable - {"ops-info"}:  # ops-info is an option of a policy too
        with pytest.raises(UsageError, match=f"the table \\[{name}\\] is not named after a command"):
            load_config(write_config(tmp_path, f"[{name}]"), "lists")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    text = f'ops-info = "lib"\nmixlist = "lists/mix.json"\nkeep-dtype = "{tmp_path}/keep.cfg"\n'
    text += '[apply]\ntype-hints = "hints.json"\n'
    assert load_config(write_config(tmp_path, text), "apply") == {
        "ops_info": str(tmp_path / "lib"),
        "mixlist": str(tmp_path / "lists" / "mix.json"),
        "keep_dtype": str(tmp_path / "keep.cfg"),
        "type_hints": str(tmp_path / "hints.json"),
    }


def test_built_in_libraries_and_standard_input_are_no_paths(tmp_path: Path) -> None:
    text = 'ops-info = "ascend910b"\nmixlist = "-"\n'
    assert load_config(write_config(tmp_path, text), "lists") == {"ops_info": "ascend910b", "mixlist": "-"}
    assert load_config(write_config(tmp_path, 'ops-info = "acsend910b"'), "lists") == {"ops_info": "acsend910b"}


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ('\nmixlst = "a"', 2, "has no option 'mixlst'", "did you mean mixlist?"),
        ('[apply]\n\nkeepio = "x"', 3, "the command apply has no option 'keepio'", "keep-io"),
        ("[aply]\ninline-functions = true", 1, "the table [aply] is not named after a command", "did you mean apply?"),
        ("# x\ninline-functions = true", 2, "an option of some commands only", "[apply]"),
        ("mixlist = 3", 1, "mixlist takes a string, not 3", ""),
        ("[apply]\n[lists]\nformat = 2020-01-01", 3, "format takes a string", ""),
        ("constants = { keep = true }", 1, "constants takes a string", ""),
        ("# x\nforce = true", 2, "force replaces files, so a configuration cannot set it", "--force"),
        ('[check]\njudge = "evil.py:judge"', 2, "judge runs code", "give --judge on the command line"),
        ("[[apply]]\ninline-functions = true", 1, "apply", ""),
    ],
)
def test_an_invalid_option_has_its_line_in_the_message(
    tmp_path: Path, text: str, line: int, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as error:
        load_config(write_config(tmp_path, text), "lists")
    assert error.value.message.startswith(f"{tmp_path}/mixlist.toml:{line}: ")
    assert message in error.value.message
    assert hint in str(error.value.hint)


def test_syntax_errors_have_a_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mixlist\.toml:2:13: this is not TOML"):
        load_config(write_config(tmp_path, 'mixlist = "a"\nconstants = keep'), "lists")


def test_deeply_nested_and_broken_files_are_errors(tmp_path: Path) -> None:
    for text in ("a = " + "[" * 5000, "a = " + "{a=" * 5000, "a." * 5000 + "a = 1", '"', "=", "a = 1\na = 2"):
        with pytest.raises(MixlistError):
            load_config(write_config(tmp_path, text), "lists")
    (tmp_path / "bytes.toml").write_bytes(b"mixlist = '\xff'")
    with pytest.raises(ListError, match=r"bytes\.toml:1:12"):
        load_config(tmp_path / "bytes.toml", "lists")
    with pytest.raises(FileError):
        load_config(tmp_path / "none.toml", "lists")


def test_an_empty_file_is_legal(tmp_path: Path) -> None:
    assert load_config(write_config(tmp_path, ""), "lists") == {}


PIECES = ["[apply]", "[lists", "mixlist", " = ", '"x"', "\n", "true", "{", "}", "keep-io", "[", "]", ".", "3"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_gives_options_or_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "mixlist.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert all(isinstance(key, str) for key in load_config(tmp_path / "mixlist.toml", "apply"))
    except MixlistError as error:
        assert "mixlist.toml" in error.message
