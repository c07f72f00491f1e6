"""The judge of ``--judge boxes``: detections of both models, in each form of outputs that it reads."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker.box_judge import DEFAULT_LIMITS, judge_boxes
from mixlist.checker.options import CheckOptions
from mixlist.checker.user_judge import JudgeMeasures
from mixlist.errors import UsageError
from mixlist.show.check_document import check_document
from mixlist.show.terminal import write_document
from tests.support.builders import model, policy

# Three objects of the classes 0, 2 and 1, by center and size; the last box has a low score.
CENTERS = np.array([[20, 20, 10, 10], [50, 50, 20, 20], [80, 30, 10, 30], [90, 90, 10, 10]], np.float32)
CLASSES, SCORES = np.array([0, 2, 1, 1]), np.array([0.9, 0.8, 0.7, 0.1], np.float32)
Outputs = dict[str, Any]


def one_hot(classes: Any, scores: Any) -> Any:
    return np.eye(3, dtype=np.float32)[classes] * scores[:, None]


def as_yolo(centers: Any, classes: Any, scores: Any) -> Outputs:
    """[images, 4 + classes, boxes], with each object twice, as a network without suppression has them."""
    table = np.concatenate([centers, one_hot(classes, scores)], axis=1)
    twice = np.concatenate([table, table * [1.01, 1, 1, 1, 0.95, 0.95, 0.95]])
    return {"out": twice.T[None].astype(np.float32)}


def as_yolo_with_objects(centers: Any, classes: Any, scores: Any) -> Outputs:
    """[images, boxes, 5 + classes], with a score of the box itself."""
    rows = np.concatenate([centers, np.ones((len(centers), 1)), one_hot(classes, scores)], axis=1)
    return {"out": np.repeat(rows, 3, axis=0)[None].astype(np.float32)}


def as_finished(centers: Any, classes: Any, scores: Any) -> Outputs:
    corners = np.concatenate([centers[:, :2] - centers[:, 2:] / 2, centers[:, :2] + centers[:, 2:] / 2], axis=1)
    rows = np.concatenate([corners, scores[:, None], classes[:, None]], axis=1)
    return {"out": np.concatenate([rows, np.zeros((4, 6))])[None].astype(np.float32)}


def as_pair(centers: Any, classes: Any, scores: Any) -> Outputs:
    corners = np.concatenate([centers[:, :2] - centers[:, 2:] / 2, centers[:, :2] + centers[:, 2:] / 2], axis=1)
    return {"boxes": corners[None].astype(np.float32), "scores": one_hot(classes, scores)[None]}


def as_logits_of_centers(centers: Any, classes: Any, scores: Any) -> Outputs:
    """Logits, and boxes by center and size as shares of the image, as DETR has them; classes before boxes."""
    logits = np.full((3, len(centers)), -20, np.float32)
    logits[classes, np.arange(len(centers))] = np.log(scores / (1 - scores))
    return {"pred_boxes": (centers / 100)[None].astype(np.float32), "logits": logits[None]}


FORMS = [as_yolo, as_yolo_with_objects, as_finished, as_pair, as_logits_of_centers]
each_form = pytest.mark.parametrize("form", FORMS)
Form = Callable[[Any, Any, Any], Outputs]


@each_form
def test_equal_detections_in_another_order_differ_in_nothing(form: Form) -> None:
    order = [2, 0, 3, 1]
    found = judge_boxes(form(CENTERS, CLASSES, SCORES), form(CENTERS[order], CLASSES[order], SCORES[order]))
    assert found == {
        "detections": 3,
        "highest_score": pytest.approx(0.9, abs=1e-6),
        "boxes_lost": 0,
        "boxes_added": 0,
        "classes_changed": 0,
        "box_shift": pytest.approx(0, abs=1e-6),
    }


@each_form
def test_each_difference_has_a_number(form: Form) -> None:
    original = form(CENTERS, CLASSES, SCORES)
    lost = judge_boxes(original, form(CENTERS, CLASSES, np.array([0.9, 0.8, 0.3, 0.1], np.float32)))
    assert (lost["boxes_lost"], lost["boxes_added"]) == (pytest.approx(1 / 3), 0)
    added = judge_boxes(original, form(CENTERS, CLASSES, np.array([0.9, 0.8, 0.7, 0.8], np.float32)))
    assert (added["boxes_lost"], added["boxes_added"]) == (0, pytest.approx(1 / 4))
    changed = judge_boxes(original, form(CENTERS, np.array([0, 2, 2, 1]), SCORES))
    assert (changed["boxes_lost"], changed["classes_changed"]) == (0, pytest.approx(1 / 3))
    moved = judge_boxes(original, form(CENTERS + np.array([1, 0, 0, 0], np.float32), CLASSES, SCORES))
    assert moved["boxes_lost"] == 0
    assert moved["box_shift"] == pytest.approx(1 - 9 / 11, abs=0.02)  # of a box 10 wide, 9 are common


@each_form
def test_boxes_that_are_nan_are_lost(form: Form) -> None:
    original = form(CENTERS, CLASSES, SCORES)
    broken = {name: np.full_like(array, np.nan) for name, array in original.items()}
    assert judge_boxes(original, broken)["boxes_lost"] == 1


def test_a_score_at_the_limit_does_not_decide() -> None:
    found = judge_boxes(
        as_pair(CENTERS, CLASSES, np.array([0.9, 0.8, 0.501, 0.1], np.float32)),
        as_pair(CENTERS, CLASSES, np.array([0.9, 0.8, 0.499, 0.1], np.float32)),
    )
    assert found["boxes_lost"] == found["boxes_added"] == 0


def test_outputs_of_another_form_are_refused() -> None:
    outputs = {"logits": np.zeros((2, 1000), np.float32)}
    with pytest.raises(UsageError, match=r"no form of detections in the outputs logits \[2, 1000\]") as caught:
        judge_boxes(outputs, outputs)
    assert caught.value.hint is not None and "FILE.py:NAME" in caught.value.hint


@pytest.mark.parametrize(("score", "verdict"), [(0.9, "pass"), (0.2, "inconclusive")])
def test_a_check_without_any_detection_is_no_pass(score: float, verdict: str) -> None:
    text = "g (float[1, 7, 8] x, float one) => (float[1, 7, 8] y) { y = Mul(x, one) }"
    feed = {"x": as_yolo(CENTERS, CLASSES, np.full(4, score, np.float32))["out"], "one": np.float32(1)}
    report = mixlist.check(model(text), policy(white=["Mul"]), [feed], judge="boxes")
    assert report.verdict == verdict, report.reasons
    if verdict == "inconclusive":
        (reason,) = report.reasons
        assert reason.startswith("the judge counted no detections in any batch of the reference")
        assert reason.endswith("its highest score is 0.2, below the threshold 0.5")
        values = {result.name: result.value for result in report.judge}
        assert values.pop("highest_score") == pytest.approx(0.2)
        # A share of no boxes is no 0, which would pass.
        assert values.pop("detections") == 0 and set(values.values()) == {None}
        stream = io.StringIO()
        write_document(check_document(report), stream)
        rows = [line.split() for line in stream.getvalue().splitlines() if line.startswith(("boxes_", "classes_"))]
        assert [row[1] + row[-1] for row in rows] == ["--"] * 3
        assert "Give data with objects, or leave out judge='boxes'" in stream.getvalue()


def test_boxes_without_a_box_in_the_reference_are_added() -> None:
    none, all_boxes = (as_yolo(CENTERS, CLASSES, np.full(4, score, np.float32)) for score in (0.2, 0.9))
    measures = JudgeMeasures(CheckOptions(judge="boxes").user_judge)
    measures.add(0, none, all_boxes)
    added = next(result for result in measures.results() if result.name == "boxes_added")
    assert (added.value, added.passed) == (1, False)


def test_the_judge_has_limits_of_its_own() -> None:
    judge = CheckOptions(judge="boxes").user_judge
    assert judge is not None and judge.limits == DEFAULT_LIMITS
    chosen = CheckOptions(judge="boxes", judge_limits={"box_shift": 0.1}).user_judge
    assert chosen is not None and chosen.limits == {"box_shift": 0.1}
