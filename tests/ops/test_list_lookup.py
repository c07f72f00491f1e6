"""Rules S5.2 to S5.5: the list of an operator, by ONNX names and by Ascend names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mixlist.diagnostics import FilePlace
from mixlist.lists import presets
from mixlist.lists.library import Library, Lists, Move
from mixlist.ops.list_lookup import ListMatch, find_list
from mixlist.ops.names import ascend_names


def library(**lists: str) -> Lists:
    return Lists(Library("lib", lists))  # type: ignore[arg-type]


def rank(dims: int | None) -> Callable[[], int | None]:
    return lambda: dims


def test_onnx_names_match_any_domain() -> None:
    """Rule S5.2: ONNX names match in every domain."""
    lists = library(Gelu="black")
    assert find_list(lists, "onnx", "", "Gelu") == ListMatch("black", "Gelu", "library lib")
    assert find_list(lists, "onnx", "com.microsoft", "Gelu").list == "black"


def test_a_domain_narrows_and_wins() -> None:
    """Rule S5.2: ONNX names match in every domain."""
    lists = Lists(Library("lib", {"Gelu": "black", "com.microsoft::Gelu": "white", "ai.onnx::Relu": "white"}))
    assert find_list(lists, "onnx", "com.microsoft", "Gelu") == ListMatch("white", "com.microsoft::Gelu", "library lib")
    assert find_list(lists, "onnx", "", "Gelu").list == "black"
    assert find_list(lists, "onnx", "", "Relu").op == "ai.onnx::Relu"
    assert find_list(lists, "onnx", "ai.onnx", "Relu").list == "white"
    assert find_list(lists, "onnx", "my.domain", "Relu").list == "gray"


def test_the_source_is_the_entry_that_decided() -> None:
    place = FilePlace("mix.json", 3, 9)
    lists = Lists(Library("lib", {"Add": "gray"}), {"Add": Move("Add", "gray", "black", place)}, frozenset({"Add"}))
    assert find_list(lists, "onnx", "", "Add") == ListMatch("black", "Add", "mix.json:3:9")


def test_an_op_nobody_names_is_gray_with_a_note() -> None:
    found = find_list(library(Add="black"), "onnx", "my.domain", "Fancy")
    assert (found.list, found.source) == ("gray", "")
    assert "my.domain::Fancy" in str(found.note)


def test_ascend_names_decide_for_the_op_that_computes() -> None:
    """Rule S5.3: The operator that computes decides."""
    lists = library(BatchMatMulV2="white", SoftmaxV2="black", RealDiv="gray", Transpose="black", RoiAlignRotated="gray")
    assert find_list(lists, "ascend", "", "MatMul") == ListMatch("white", "BatchMatMulV2", "library lib")
    assert find_list(lists, "ascend", "", "Softmax").op == "SoftmaxV2"
    assert find_list(lists, "ascend", "", "Div").list == "gray"
    assert find_list(lists, "ascend", "", "RoiAlignRotated").op == "RoiAlignRotated"  # not the Transpose before it
    assert find_list(lists, "ascend", "", "Transpose").list == "black"


@pytest.mark.parametrize(
    ("op", "dims", "decided"),
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
def test_the_rank_settles_the_form(op: str, dims: int, decided: str) -> None:
    """Rule S5.4: Ranks choose between forms, then black wins."""
    lists = Lists(Library("lib", dict.fromkeys(ascend_names("", op), "gray") | {decided: "white"}))
    found = find_list(lists, "ascend", "", op, rank(dims))
    if op == "MaxPool" and dims == 4:  # MaxPool or MaxPoolV3, by its attributes: they have to agree
        assert found.list == "gray"
        lists = Lists(Library("lib", {"MaxPool": "white", "MaxPoolV3": "white", "MaxPool3D": "black"}))
        found = find_list(lists, "ascend", "", op, rank(dims))
    assert (found.list, found.op, found.note) == ("white", decided, None)


@pytest.mark.parametrize(
    ("flat", "solid", "decides"),
    [
        ("white", "black", "Conv3D"),
        ("black", "white", "Conv2D"),
        ("white", "gray", "Conv3D"),
        ("gray", "black", "Conv3D"),
    ],
)
def test_without_a_rank_black_beats_gray_beats_white(flat: str, solid: str, decides: str) -> None:
    """Rule S5.4: Ranks choose between forms, then black wins."""
    found = find_list(library(Conv2D=flat, Conv3D=solid), "ascend", "", "Conv", rank(None))
    assert found.op == decides
    assert f"Conv2D is {flat}" in str(found.note)
    assert f"Conv3D is {solid}" in str(found.note)


def test_without_a_rank_agreement_needs_no_note() -> None:
    assert find_list(library(Conv2D="white", Conv3D="white"), "ascend", "", "Conv", rank(None)).note is None


def test_the_rank_is_asked_for_only_where_it_matters() -> None:
    def never() -> int | None:
        raise AssertionError("asked")

    assert find_list(library(Relu="white"), "ascend", "", "Relu", never).list == "white"
    assert find_list(library(Relu="white"), "onnx", "", "Conv", never).list == "gray"


def test_forms_that_the_library_does_not_know_do_not_count() -> None:
    assert find_list(library(Squeeze="black"), "ascend", "", "Squeeze") == ListMatch("black", "Squeeze", "library lib")


@pytest.mark.parametrize(
    ("domain", "op", "says"),
    [
        ("", "Gelu", "Gelu has no Ascend counterpart"),
        ("com.microsoft", "Conv", "com.microsoft::Conv has no Ascend counterpart"),
        ("", "Softmax", "Softmax is SoftmaxV2 on Ascend, which the library does not name"),
    ],
)
def test_an_op_without_counterpart_is_gray_and_reported(domain: str, op: str, says: str) -> None:
    """Rule S5.5: An operator without a counterpart is gray."""
    found = find_list(library(Conv2D="white", Conv3D="white"), "ascend", domain, op)
    assert found.list == "gray"
    assert says in str(found.note)


@pytest.mark.parametrize("name", [name for name in presets.names() if name.startswith("ascend")])
def test_every_standard_op_has_a_list_on_every_chip(name: str) -> None:
    from mixlist.lists.op_catalog import onnx_domains

    lists = Lists(presets.load(name))
    found = {op: find_list(lists, "ascend", "", op, rank(4)) for op in onnx_domains()[""]}
    assert {answer.list for answer in found.values()} <= {"white", "black", "gray"}
    assert found["Conv"] == ListMatch("white", "Conv2D", f"library {name}")
    for op, answer in found.items():
        assert answer.source or answer.note, op
