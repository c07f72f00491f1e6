"""load_policy: the policy and its warnings."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from mixlist.errors import FileError, ListError, UsageError
from mixlist.lists import presets
from mixlist.lists.load import load_policy
from mixlist.lists.policy import NEW_MODES, OLD_MODES, RULE_SET, NewMode, OldMode, Policy


def write(folder: Path, name: str, value: Any) -> Path:
    file = folder / name
    file.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return file


def codes(policy: Policy) -> list[str]:
    return [warning.code for warning in policy.warnings]


def flags(**lists: str) -> dict[str, Any]:
    return {op: {"precision_reduce": {"flag": flag}} for op, flag in lists.items()}


def test_the_default_policy_has_no_warning() -> None:
    policy = load_policy()
    assert (policy.mode.name, policy.lists.library.name, policy.space) == ("mixed_float16", "onnx", "onnx")
    assert (policy.gray_policy, policy.constants, policy.op_names, policy.rules) == ("ascend", "keep", "auto", ())
    assert policy.warnings == ()


def test_the_arguments_and_their_defaults(tmp_path: Path) -> None:
    """Arguments keep their order: the library and the mixlist are often given by position."""
    parameters = inspect.signature(load_policy).parameters.values()
    assert {parameter.name: parameter.default for parameter in parameters} == {
        "ops_info": "onnx", "mixlist": None, "precision_mode": None, "precision_mode_v2": None, "keep_dtype": None,
        "customize_dtypes": None, "op_names": "auto", "gray_policy": "ascend", "constants": None, "protect": None,
        "strict": False,
    }  # fmt: skip
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    black = write(tmp_path, "mix.json", {"white-list": {"to-remove": ["MatMul"]}, "black-list": {"to-add": ["MatMul"]}})
    assert load_policy("onnx", black).lists.list_of("MatMul") == "black"
    with pytest.raises(TypeError, match="unexpected keyword argument 'opsinfo'"):
        load_policy(opsinfo="onnx")  # type: ignore[call-arg]


def test_a_list_that_is_no_path_is_refused() -> None:
    with pytest.raises(TypeError, match="mixlist is a list: write it to a file, and pass the path"):
        load_policy(mixlist=["Softmax"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keep_dtype is a dict: write it to a file, and pass the path"):
        load_policy(keep_dtype={"fc": "float32"})  # type: ignore[arg-type]


def test_edits_can_be_a_text_or_an_object(tmp_path: Path) -> None:
    edits = {"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-remove": ["MatMul"]}}
    from_file = load_policy("onnx", write(tmp_path, "mix.json", edits))
    for mixlist in (edits, json.dumps(edits), f"\n {json.dumps(edits, indent=1)}"):
        policy = load_policy("onnx", mixlist)
        assert policy.lists.list_of("MatMul") == "black" and policy.digest == from_file.digest
    with pytest.raises(ListError, match=r"^modify_mixlist:1:17: .*to-ad"):
        load_policy(mixlist={"black-list": {"to-ad": ["MatMul"]}})
    with pytest.raises(FileError, match=r"nothing\.json"):
        load_policy(mixlist="nothing.json")


def test_the_literal_types_are_the_names() -> None:
    assert get_args(NewMode) == tuple(NEW_MODES) and get_args(OldMode) == tuple(OLD_MODES)


def test_all_files_and_options_are_read(tmp_path: Path) -> None:
    policy = load_policy(
        ops_info=write(tmp_path, "lib.json", flags(Gemm="true", Conv="false")),
        mixlist=write(
            tmp_path, "mix.json", {"white-list": {"to-add": ["Conv"]}, "black-list": {"to-remove": ["Conv"]}}
        ),
        precision_mode_v2="mixed_bfloat16",
        keep_dtype=str(write(tmp_path, "keep.cfg", "a\n")),
        customize_dtypes=write(
            tmp_path, "own.cfg", "OpType::Add:InputDtype:,OutputDtype:fp16\nb::InputDtype:,OutputDtype:fp32\n"
        ),
        gray_policy="between",
        constants="clamp",
    )
    assert policy.mode.low == "bfloat16"
    assert (policy.lists.list_of("Conv"), policy.lists.list_of("Gemm")) == ("white", "white")
    assert policy.lists.source("Conv").startswith(f"{tmp_path}/mix.json:1:")
    assert [(rule.by, rule.pattern, rule.keep) for rule in policy.rules] == [
        ("name", "b", False),
        ("type", "Add", False),
        ("name", "a", True),
    ]
    assert (policy.gray_policy, policy.constants) == ("between", "clamp")


@pytest.mark.parametrize(
    ("option", "value", "similar"),
    [
        ("op_names", "onxn", "onnx"),
        ("gray_policy", "promotes", "promote"),
        ("constants", "keeep", "keep"),
        ("protect", "mask", "masks"),
    ],
)
def test_an_unknown_value_has_a_hint_with_the_most_similar_one(option: str, value: str, similar: str) -> None:
    with pytest.raises(UsageError, match=rf"{option}=... has no value '{value}'") as error:
        load_policy(**{option: value})  # type: ignore[arg-type]
    assert f"did you mean {similar}?" in str(error.value.hint)


def test_the_library_decides_the_default_of_the_protections(tmp_path: Path) -> None:
    """Rule S4.34: Protections are part of the policy."""
    all_names = {"masks", "norms", "positions", "quantized"}
    onnx_library = write(tmp_path, "onnx.json", flags(MatMul="true", Softmax="false", Conv="true"))
    ascend_library = write(tmp_path, "ascend.json", flags(Conv2D="true", BatchMatMulV2="true"))
    assert load_policy().protect == load_policy(onnx_library).protect == all_names
    assert load_policy(ascend_library).space == "ascend"
    for library in (ascend_library, *(name for name in presets.names() if name != "onnx")):
        assert load_policy(library).protect == frozenset()
        assert load_policy(library, protect="positions, masks").protect == {"masks", "positions"}
    assert load_policy(protect="none").protect == frozenset()
    assert load_policy(protect="masks").protect == {"masks"}


@pytest.mark.parametrize("text", ["", "masks,", "none,masks", "quantised", "all"])
def test_an_unknown_protection_is_refused_with_the_allowed_values(text: str) -> None:
    """Rule S4.34: Protections are part of the policy."""
    with pytest.raises(UsageError, match=r"protect=\.\.\. has no value") as error:
        load_policy(protect=text)
    assert "masks, norms, positions, quantized" in str(error.value.hint)


def test_protections_are_part_of_the_digest_if_nodes_can_become_low_precision() -> None:
    """Rule S7.11: The file names its policy."""
    for mode, differs in (
        ("mixed_bfloat16", True),
        ("fp16", True),
        ("origin", False),
        ("cube_fp16in_fp32out", False),
    ):
        with_masks, without = (load_policy(precision_mode_v2=mode, protect=text) for text in ("masks", "none"))
        assert (with_masks.digest != without.digest) == differs


def test_a_misspelled_built_in_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="acsend910b: no such file or directory, and no built-in library") as error:
        load_policy("acsend910b")
    assert "did you mean ascend910b" in str(error.value.hint)


@pytest.mark.parametrize("path", ["", "\0", "a\0b/c"])
def test_a_path_that_no_file_can_have_is_an_error(path: str) -> None:
    with pytest.raises(FileError):
        load_policy(path)


def test_a_mixlist_needs_a_mode_with_lists(tmp_path: Path) -> None:
    """Rule S3.3: A mixlist needs a mode with lists."""
    with pytest.raises(UsageError, match="has no lists"):
        load_policy(mixlist=write(tmp_path, "mix.json", {}), precision_mode_v2="fp16")


def test_a_library_that_the_mode_does_not_use_warns(tmp_path: Path) -> None:
    """Rule S3.3: A mixlist needs a mode with lists."""
    lists = load_policy("ascend910b", precision_mode_v2="fp16")
    assert codes(lists) == ["ML401"]
    # The library still decides the protection (Rule S4.34).
    assert "ascend910b decides only the names of op types and the default of protect=..." in lists.warnings[0].message
    assert lists.protect != load_policy(precision_mode_v2="fp16").protect
    assert codes(load_policy(precision_mode_v2="fp16")) == []


def test_keep_dtype_is_not_used_with_the_mode_origin(tmp_path: Path) -> None:
    policy = load_policy(keep_dtype=write(tmp_path, "keep.cfg", "a\n"), precision_mode_v2="origin")
    assert (policy.rules, codes(policy)) == ((), ["ML403"])


def test_the_name_space_is_detected_or_given(tmp_path: Path) -> None:
    """Rule S5.1: A library has one name space."""
    ascend = write(tmp_path, "ascend.json", flags(Conv2D="true", Add="false"))
    both = write(tmp_path, "both.json", flags(Add="true"))
    assert load_policy("ascend310").space == "ascend"
    assert (load_policy(ascend).space, codes(load_policy(ascend))) == ("ascend", [])
    assert (load_policy(both).space, codes(load_policy(both))) == ("onnx", ["ML402"])
    assert (load_policy(both, op_names="ascend").space, codes(load_policy(both, op_names="ascend"))) == ("ascend", [])
    with pytest.raises(UsageError, match="the built-in library ascend910b has ascend names"):
        load_policy("ascend910b", op_names="onnx")
    assert load_policy("ascend910b", op_names="ascend").space == "ascend"


def test_strict_refuses_comments(tmp_path: Path) -> None:
    mixlist = write(tmp_path, "mix.json", '{"black-list": {"to-add": ["Add"]}} // comment')
    assert load_policy(mixlist=mixlist).warnings[0].severity == "warning"
    with pytest.raises(ListError):
        load_policy(mixlist=mixlist, strict=True)


def test_an_invalid_mixlist_stops_with_its_findings(tmp_path: Path) -> None:
    with pytest.raises(ListError, match=r"mix\.json:1:") as error:
        load_policy(mixlist=write(tmp_path, "mix.json", {"blacklist": {}}))
    assert error.value.diagnostics


def test_the_digest_depends_on_the_meaning_and_not_on_the_files(tmp_path: Path) -> None:
    """Rule S7.11: The file names its policy."""
    first = write(tmp_path, "first.json", '{"black-list": {"to-add": ["Add", "Mul"]}}')
    second = write(tmp_path, "second.json", '\n{"black-list":{"to-add":["Mul","Add"],\n"to-remove":[]}}')
    assert load_policy(mixlist=first).digest == load_policy(mixlist=second).digest
    assert load_policy(precision_mode="allow_mix_precision").digest == load_policy().digest


def test_every_setting_that_decides_changes_the_digest(tmp_path: Path) -> None:
    """Rule S7.11: The file names its policy."""
    mixlist = write(tmp_path, "mix.json", {"black-list": {"to-add": ["Add"]}})
    narrow = write(tmp_path, "narrow.json", {"black-list": {"to-add": ["ai.onnx::Add"]}})
    input_rules = write(tmp_path, "inputs.cfg", "a::InputDtype:fp16,OutputDtype:\n")
    output_rules = write(tmp_path, "outputs.cfg", "a::InputDtype:,OutputDtype:fp16\n")
    policies = [
        load_policy(),
        load_policy("pytorch"),
        load_policy(mixlist=mixlist),
        load_policy(mixlist=narrow),
        load_policy(precision_mode_v2="mixed_bfloat16"),
        load_policy(precision_mode_v2="fp16"),
        load_policy(precision_mode_v2="origin"),
        load_policy(gray_policy="promote"),
        load_policy(constants="ieee"),
        load_policy(protect="masks"),
        load_policy(protect="norms"),
        load_policy(protect="positions"),
        load_policy(protect="none"),
        load_policy(customize_dtypes=input_rules),
        load_policy(customize_dtypes=output_rules),
        load_policy(keep_dtype=write(tmp_path, "keep.cfg", "a\n")),
    ]
    assert len({policy.digest for policy in policies}) == len(policies)


def test_the_version_of_the_rules_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule S7.11: a file that other rules wrote has another digest."""
    before = load_policy().digest
    monkeypatch.setattr("mixlist.lists.load.RULE_SET", RULE_SET + 1)
    assert load_policy().digest != before


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    import subprocess
    import sys

    code = "import mixlist; print(mixlist.load_policy('pytorch').digest)"
    digests = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            check=True, capture_output=True, text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert digests == [load_policy("pytorch").digest] * 2
