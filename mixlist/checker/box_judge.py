"""The built-in judge for detectors, ``--judge boxes``: it compares what survives non-maximum suppression.

A detector makes thousands of boxes, of which a user sees the few with a high score. So errors of its outputs say
little: the boxes of a low score may differ, and equal detections may come in another order. Three forms are read:

- the raw output of YOLO, [images, 4 + classes, boxes], or [images, boxes, 5 + classes] with a score of the box itself;
  x, y, width and height of the box come first;
- finished detections, [images, boxes, 6]: two corners, the score, and the class as a whole number;
- two outputs: boxes [images, boxes, 4], and scores [images, boxes], [images, boxes, classes] or [images, classes,
  boxes]. If a score is below 0 or above 1, all scores are logits. Boxes are two corners if in the reference the second
  point of each lies at or behind the first one; otherwise they are center and size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mixlist.errors import UsageError
from mixlist.number_text import format_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# A detection that counts has at least this score; its counterpart may have a little less, so that a score at the limit
# does not decide.
_SURE, _FOUND = 0.5, 0.4
_SAME_OBJECT = 0.5  # two boxes that overlap so much (intersection over union) are about one object
_MOST_BOXES = 1000  # of one image, those of the highest scores
NO_DETECTIONS = "the judge counted no detections in any batch of the reference"
# The limits of ``--judge boxes`` without ``--limit``.
DEFAULT_LIMITS = {"boxes_lost": 0.02, "boxes_added": 0.02, "classes_changed": 0.02}


class Detections(NamedTuple):
    """The boxes of one image after non-maximum suppression, the highest score first.

    ``corners``: float64 [boxes, 4], x and y of two corners. ``scores``: [boxes], 0 to 1. ``classes``: [boxes].
    ``highest_score``: the highest score of any box before the suppression; 0 without a box.
    """

    corners: Floats
    scores: Floats
    classes: NDArray[np.generic]
    highest_score: float


def judge_boxes(reference: Mapping[str, Any], mixed: Mapping[str, Any]) -> dict[str, float]:
    """Compare the detections of a batch; the numbers of differences are 0 for equal ones.

    ``boxes_lost``: the share of the reference's detections for which the mixed model has no box of the same object.
    ``boxes_added``: the same the other way round. ``classes_changed``: the share of common objects of another class.
    ``box_shift``: the largest distance of two boxes of one object, as 1 minus their intersection over union.
    ``detections``: the number of the reference's detections. If it is 0 in all batches, a check is inconclusive, and
    ``highest_score``, that of the reference's boxes, shows how far they are from a detection.

    Raises UsageError if the outputs have none of the three forms.
    """
    expected, found = [*_find_detections(reference, reference)], [*_find_detections(mixed, reference)]
    counts = {"lost": 0, "sure": 0, "added": 0, "sure mixed": 0, "common": 0, "changed": 0}
    shift = 0.0
    for ours, theirs in zip(expected, found, strict=True):
        overlaps = _overlaps(ours.corners, theirs.corners)
        sure, sure_mixed = ours.scores >= _SURE, theirs.scores >= _SURE
        has_partner = overlaps.max(axis=1, initial=0) >= _SAME_OBJECT
        counts["sure"] += int(sure.sum())
        counts["lost"] += int((sure & ~has_partner).sum())
        counts["sure mixed"] += int(sure_mixed.sum())
        counts["added"] += int((sure_mixed & (overlaps.max(axis=0, initial=0) < _SAME_OBJECT)).sum())
        for index in (sure & has_partner).nonzero()[0]:
            same_class = theirs.classes == ours.classes[index]
            of_class = (overlaps[index] * same_class).max()
            counts["common"] += 1
            counts["changed"] += bool(of_class < _SAME_OBJECT)
            shift = max(shift, 1 - float(overlaps[index].max()))
    return {
        "detections": counts["sure"],
        "highest_score": max((image.highest_score for image in expected), default=0.0),
        "boxes_lost": counts["lost"] / max(counts["sure"], 1),
        "boxes_added": counts["added"] / max(counts["sure mixed"], 1),
        "classes_changed": counts["changed"] / max(counts["common"], 1),
        "box_shift": shift,
    }


def explain_no_detections(numbers: Mapping[str, float | None]) -> str:
    """Return why a reference without detections says nothing. ``numbers``: those of ``judge_boxes``, the largest."""
    highest = format_number(numbers["highest_score"] or 0.0)
    return f"{NO_DETECTIONS}: its highest score is {highest}, below the threshold {_SURE}"


# --- the forms of outputs ---


def _find_detections(outputs: Mapping[str, Any], reference: Mapping[str, Any]) -> Iterator[Detections]:
    """Yield the detections of each image; ``reference`` decides about the form, so that both models have one."""
    import numpy as np

    arrays = {name: np.asarray(array) for name, array in reference.items() if hasattr(array, "dtype")}
    floats = {
        name: array for name, array in arrays.items() if array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    }
    raw = next((name for name, array in floats.items() if array.ndim == 3 and min(array.shape[1:]) > 5), None)
    boxes = next((name for name, array in floats.items() if array.ndim == 3 and array.shape[2] == 4), None)
    if boxes is not None:
        count = floats[boxes].shape[:2]
        scores = next((n for n, a in floats.items() if n != boxes and _scores_fit(a.shape, count)), None)
        if scores is not None:
            is_corners = bool((floats[boxes][..., 2:] >= floats[boxes][..., :2]).all())
            for image in zip(_read(outputs[boxes]), _read(outputs[scores]), strict=True):
                yield _suppress(*_read_pair(*image), is_corners)
            return
    if raw is None:
        shown = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise UsageError(
            f"the judge boxes knows no form of detections in the outputs {shown}",
            hint="write a judge of your own: FILE.py:NAME, a function of the outputs of both models",
        )
    is_finished = floats[raw].shape[2] == 6 and bool((floats[raw][..., 5] % 1 == 0).all())
    for table in _read(outputs[raw]):
        if is_finished:
            yield _suppress(table[:, :4], table[:, 4], table[:, 5], True)
        elif table.shape[0] < table.shape[1]:  # a column for each box
            yield _suppress(table[:4].T, table[4:].max(axis=0), table[4:].argmax(axis=0), False)
        else:
            scores_of_classes = table[:, 5:] * table[:, 4:5]
            yield _suppress(table[:, :4], scores_of_classes.max(axis=1), scores_of_classes.argmax(axis=1), False)


def _read(output: Any) -> Floats:
    import numpy as np

    return np.asarray(output).astype(np.float64)


def _scores_fit(shape: tuple[int, ...], boxes: tuple[int, ...]) -> bool:
    """Return whether an output of a shape can hold a score, or one for each class, for [images, boxes]."""
    images, count = boxes
    return shape == boxes or (len(shape) == 3 and shape[0] == images and count in shape[1:])


def _read_pair(boxes: Floats, scores: Floats) -> tuple[Floats, Floats, NDArray[np.generic]]:
    """Return boxes, the score of each box, and its class, from two outputs of one image."""
    import numpy as np

    if scores.ndim == 1:
        scores = scores[:, None]
    elif scores.shape[0] != boxes.shape[0]:
        scores = scores.T
    if scores.size and (scores.min() < 0 or scores.max() > 1):
        with np.errstate(over="ignore"):
            scores = 1 / (1 + np.exp(-scores))
    return boxes, scores.max(axis=1, initial=0), scores.argmax(axis=1)


# --- boxes ---


def _suppress(boxes: Floats, scores: Floats, classes: NDArray[np.generic], is_corners: bool) -> Detections:
    """Return the boxes that no box of the same class and a higher score overlaps."""
    import numpy as np

    highest_score = float(scores.max(initial=0, where=~np.isnan(scores)))
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= _FOUND][:_MOST_BOXES]  # NaN is no detection
    corners = boxes[order]
    if not is_corners:
        center, half = corners[:, :2], corners[:, 2:] / 2
        corners = np.concatenate([center - half, center + half], axis=1)
    scores, classes = scores[order], classes[order]
    overlaps = _overlaps(corners, corners) * (classes[:, None] == classes[None])
    kept: list[int] = []
    for index in range(len(order)):
        if not kept or overlaps[index, kept].max() < _SAME_OBJECT:
            kept.append(index)
    return Detections(corners[kept], scores[kept], classes[kept], highest_score)


def _overlaps(first: Floats, second: Floats) -> Floats:
    """Return the intersection over union of all pairs, [first boxes, second boxes]."""
    import numpy as np

    lower, upper = (
        np.maximum(first[:, None, :2], second[None, :, :2]),
        np.minimum(first[:, None, 2:], second[None, :, 2:]),
    )
    common = np.clip(upper - lower, 0, None).prod(axis=2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - common
    shares: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares
