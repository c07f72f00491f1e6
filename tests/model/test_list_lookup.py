"""Rules S5.2 to S5.5: the list of an operator, by ONNX names and by Ascend names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mixlist.diagnostics import FilePlace
from mixlist.lists import presets
from mixlist.model.operator_names import ListMatch, ascend_names, find_list
from tests.support.package import Library, Lists, Move


def library(**lists: str) -> Lists:
    return Lists(Library("lib", lists))  # type: ignore[arg-type]


def rank(dims: int | None) -> Callable[[], int | None]:
    return lambda: dims


def test_onnx_names_match_any_domain() -> None:
    """Rule S5.2: ONNX names match in every domain."""
    lists = library(Gelu="black")
    assert find_list(lists, "onnx", "", "Gelu") == ListMatch("black", "Gelu", "library lib")
    assert find_list(lists, "onnx", "com.microsoft", "Gelu").list == "black"


def test_an_entry_with_a_domain_wins() -> None:
    """Rule S5.2: ONNX names match in every domain."""
    lists = Lists(Library("lib", {"Gelu": "black", "com.microsoft::Gelu": "white", "ai.onnx::Relu": "white"}))
    assert find_list(lists, "onnx", "com.microsoft", "Gelu") == ListMatch("white", "com.microsoft::Gelu", "library lib")
    assert find_list(lists, "onnx", "", "Gelu").list == "black"
    assert find_list(lists, "onnx", "", "Relu").op == "ai.onnx::Relu"
    assert find_list(lists, "onnx", "ai.onnx", "Relu").list == "white"
    assert find_list(lists, "onnx", "my.domain", "Relu").list == "gray"


def test_the_source_is_the_entry_that_decides() -> None:
    place = FilePlace("mix.json", 3, 9)
    lists = Lists(Library("lib", {"Add": "gray"}), {"Add": Move("Add", "gray", "black", place)}, frozenset({"Add"}))
    assert find_list(lists, "onnx", "", "Add") == ListMatch("black", "Add", "mix.json:3:9")


def test_an_op_that_no_list_names_is_gray_with_a_note() -> None:
    match = find_list(library(Add="black"), "onnx", "my.domain", "Fancy")
    assert (match.list, match.source) == ("gray", "")
    assert "my.domain::Fancy" in str(match.note)


def test_ascend_names_decide_for_the_op_that_computes() -> None:
    """Rule S5.3: The operator that computes decides."""
    lists = library(BatchMatMulV2="white", SoftmaxV2="black", RealDiv="gray", Transpose="black", RoiAlignRotated="gray")
    assert find_list(lists, "ascend", "", "MatMul") == ListMatch("white", "BatchMatMulV2", "library lib")
    assert find_list(lists, "ascend", "", "Softmax").op == "SoftmaxV2"
    assert find_list(lists, "ascend", "", "Div").list == "gray"
    assert find_list(lists, "ascend", "", "RoiAlignRotated").op == "RoiAlignRotated"  # not the Transpose before it
    assert find_list(lists, "ascend", "", "Transpose").list == "black"


@pytest.mark.parametrize(
    ("op", "dims", "deciding_form"),
    [
        ("Conv", 4, "Conv2D"),
        ("Conv", 3, "Conv2D"),  # a 1-d convolution gets an axis of size one
        ("Conv", 5, "Conv3D"),
        ("ConvTranspose", 4, "Conv2DTranspose"),
        ("ConvTranspose", 5, "Conv3DTranspose"),
        ("MaxPool", 4, "MaxPool"),
        ("MaxPool", 5, "MaxPool3D"),
        ("AveragePool", 4, "AvgPoolV2"),
        ("AveragePool", 5, "AvgPool3D"),
    ],
)
def test_the_rank_decides_between_forms(op: str, dims: int, deciding_form: str) -> None:
    """Rule S5.4: Ranks choose between forms, then black wins."""
    lists = Lists(Library("lib", dict.fromkeys(ascend_names("", op), "gray") | {deciding_form: "white"}))
    match = find_list(lists, "ascend", "", op, rank(dims))
    if op == "MaxPool" and dims == 4:  # MaxPool or MaxPoolV3, by its attributes: they have to agree
        assert match.list == "gray"
        lists = Lists(Library("lib", {"MaxPool": "white", "MaxPoolV3": "white", "MaxPool3D": "black"}))
        match = find_list(lists, "ascend", "", op, rank(dims))
    assert (match.list, match.op, match.note) == ("white", deciding_form, None)


@pytest.mark.parametrize(
    ("list_2d", "list_3d", "deciding_form"),
    [
        ("white", "black", "Conv3D"),
        ("black", "white", "Conv2D"),
        ("white", "gray", "Conv3D"),
        ("gray", "black", "Conv3D"),
    ],
)
def test_without_a_rank_black_beats_gray_beats_white(list_2d: str, list_3d: str, deciding_form: str) -> None:
    """Rule S5.4: Ranks choose between forms, then black wins."""
    match = find_list(library(Conv2D=list_2d, Conv3D=list_3d), "ascend", "", "Conv", rank(None))
    assert match.op == deciding_form
    assert f"Conv2D is {list_2d}" in str(match.note)
    assert f"Conv3D is {list_3d}" in str(match.note)


def test_without_a_rank_forms_on_one_list_need_no_note() -> None:
    assert find_list(library(Conv2D="white", Conv3D="white"), "ascend", "", "Conv", rank(None)).note is None


def test_the_rank_is_computed_only_if_it_matters() -> None:
    def never() -> int | None:
        raise AssertionError("the rank is not needed")

    assert find_list(library(Relu="white"), "ascend", "", "Relu", never).list == "white"
    assert find_list(library(Relu="white"), "onnx", "", "Conv", never).list == "gray"


def test_forms_that_the_library_does_not_know_do_not_count() -> None:
    assert find_list(library(Squeeze="black"), "ascend", "", "Squeeze") == ListMatch("black", "Squeeze", "library lib")


@pytest.mark.parametrize(
    ("domain", "op", "note_text"),
    [
        ("", "Gelu", "Gelu has no Ascend counterpart"),
        ("com.microsoft", "Conv", "com.microsoft::Conv has no Ascend counterpart"),
        ("", "Softmax", "Softmax is SoftmaxV2 on Ascend and has no entry in the library"),
    ],
)
def test_an_op_without_counterpart_is_gray_and_reported(domain: str, op: str, note_text: str) -> None:
    """Rule S5.5: An operator without a counterpart is gray."""
    match = find_list(library(Conv2D="white", Conv3D="white"), "ascend", domain, op)
    assert match.list == "gray"
    assert note_text in str(match.note)


@pytest.mark.parametrize("name", [name for name in presets.names() if name.startswith("ascend")])
def test_every_standard_op_has_a_list_on_every_chip(name: str) -> None:
    from mixlist.lists.op_catalog import onnx_domains

    lists = Lists(presets.load(name))
    matches = {op: find_list(lists, "ascend", "", op, rank(4)) for op in onnx_domains()[""]}
    assert {match.list for match in matches.values()} <= {"white", "black", "gray"}
    conv = "Conv2DV2" if name == "ascend950" else "Conv2D"
    assert matches["Conv"] == ListMatch("white", conv, f"library {name}")
    for op, match in matches.items():
        assert match.source or match.note, op


@pytest.mark.parametrize(
    ("op", "dims", "older", "newer"),
    [
        ("MatMul", 2, "BatchMatMulV2", "BatchMatMulV3"),
        ("Gemm", 2, "MatMulV2", "MatMulV3"),
        ("Conv", 4, "Conv2D", "Conv2DV2"),
        ("Conv", 5, "Conv3D", "Conv3DV2"),
        ("ConvTranspose", 4, "Conv2DTranspose", "Conv3DTransposeV2"),
        ("ConvTranspose", 5, "Conv3DTranspose", "Conv3DTransposeV2"),
    ],
)
def test_a_library_with_the_newer_op_type_alone_has_the_operator_under_it(
    op: str, dims: int, older: str, newer: str
) -> None:
    """Rule S5.9: where the library has both, the older one decides, as on the chips of CANN 8.1."""
    only_newer, both = library(**{newer: "black"}), library(**{newer: "black", older: "white"})
    assert find_list(only_newer, "ascend", "", op, rank(dims))[:2] == ("black", newer)
    assert find_list(both, "ascend", "", op, rank(dims))[:2] == ("white", older)
