"""Images as data: layouts, channels, values and sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mixlist
from mixlist import read_data
from mixlist.errors import FileError, MixlistError, ModelError, UsageError
from tests.support.builders import model
from tests.support.feed_cases import model_with_input

RED, BLUE = (255, 10, 0), (0, 10, 255)


def save_image(path: Path, color: tuple[int, ...] = RED, size: tuple[int, int] = (4, 2)) -> Path:
    """Save an image of one color; ``size`` is (width, height)."""
    path.parent.mkdir(exist_ok=True)
    Image.new({1: "L", 3: "RGB", 4: "RGBA"}[len(color)], size, color if len(color) > 1 else color[0]).save(path)
    return path


@pytest.mark.parametrize(
    ("declaration", "shape"),
    [
        ("float[N, 3, 2, 4]", (1, 3, 2, 4)),
        ("float[1, 2, 4, 3]", (1, 2, 4, 3)),
        ("float[3, H, W]", (3, 2, 4)),
        ("float[H, W, 3]", (2, 4, 3)),
        ("float16[N, 1, 2, 4]", (1, 1, 2, 4)),
        ("float[2, 4, 1]", (2, 4, 1)),
    ],
)
def test_the_layout_follows_from_the_shape_of_the_input(
    tmp_path: Path, declaration: str, shape: tuple[int, ...]
) -> None:
    path = save_image(tmp_path / "a.png")
    (feed,) = read_data(model_with_input(declaration), path, scale=1)
    assert feed["x"].shape == shape
    channels = [axis for axis, size in enumerate(shape) if size in (1, 3)][-1]
    first_pixel = np.moveaxis(feed["x"].reshape(shape), channels, -1).reshape(-1, shape[channels])[0]
    gray = round(0.299 * 255 + 0.587 * 10)
    assert first_pixel.tolist() == ([255, 10, 0] if shape[channels] == 3 else [gray])


def test_a_value_is_pixel_less_mean_times_scale(tmp_path: Path) -> None:
    path = save_image(tmp_path / "a.png")
    proto = model_with_input("float[N, 3, 2, 4]")
    (feed,) = read_data(proto, path, mean=[250, 10, 0], scale=[0.5, 1, 2])
    assert feed["x"][0, :, 0, 0].tolist() == [2.5, 0, 0]
    (feed,) = read_data(proto, path, scale=1 / 255)
    assert feed["x"].dtype == np.float32
    assert feed["x"][0, :, 0, 0].tolist() == [1, np.float32(10 / 255), 0]
    (feed,) = read_data(proto, path, mean=[1, 2, 3], scale=1, bgr=True)  # the mean is in the order of the model
    assert feed["x"][0, :, 0, 0].tolist() == [-1, 8, 252]


def test_integer_inputs_take_pixels_as_they_are(tmp_path: Path) -> None:
    path = save_image(tmp_path / "a.png")
    (feed,) = read_data(model_with_input("uint8[N, H, W, 3]"), path)
    assert feed["x"].dtype == np.uint8
    assert feed["x"][0, 0, 0].tolist() == [255, 10, 0]
    (feed,) = read_data(model_with_input("int8[N, H, W, 3]"), path, mean=128)
    assert feed["x"][0, 0, 0].tolist() == [127, -118, -128]
    with pytest.raises(UsageError, match=r"input 'x' is float32.*cannot be represented as uint8"):
        list(read_data(model_with_input("uint8[N, H, W, 3]"), path, scale=1 / 255))


def test_floats_need_a_mean_or_a_scale(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing says how pixels become floats") as caught:
        read_data(model_with_input("float[N, 3, 2, 4]"), save_image(tmp_path / "a.png"))
    assert "scale=1/255" in str(caught.value.hint)


def test_colors_of_files_become_those_of_the_input(tmp_path: Path) -> None:
    save_image(tmp_path / "a" / "1.png", (255, 10, 0, 128))
    save_image(tmp_path / "a" / "2.bmp", (77,))
    save_image(tmp_path / "a" / "10.JPG", RED)
    batches = read_data(model_with_input("uint8[N, 3, 2, 4]"), tmp_path / "a")
    assert [Path(name).name for name in batches.names()] == ["1.png", "2.bmp", "10.JPG"]
    transparent, gray, jpeg = (feed["x"][0, :, 0, 0].tolist() for feed in batches)
    assert transparent == [255, 10, 0]
    assert gray == [77, 77, 77]
    assert np.abs(np.array(jpeg) - RED).max() < 5


def test_images_fill_the_batches_of_the_model(tmp_path: Path) -> None:
    paths = [save_image(tmp_path / f"{index}.png", (index,)) for index in range(5)]
    batches = read_data(model_with_input("uint8[2, 1, 2, 4]"), paths)
    assert [feed["x"][:, 0, 0, 0].tolist() for feed in batches] == [[0, 1], [2, 3]]
    assert batches.names()[0].endswith("0.png to 1.png")
    (left_out,) = batches.warnings
    assert (left_out.code, left_out.path) == ("ML610", str(paths[4]))
    assert left_out.message == "the last image is left out: the model takes batches of 2, and there are 5 images"
    # A size that the model leaves open also takes the last images.
    open_batches = read_data(model_with_input("uint8[N, 1, 2, 4]"), paths, dims={"N": 2})
    assert [feed["x"].shape[0] for feed in open_batches] == [2, 2, 1]
    assert open_batches.warnings == ()
    assert [len(feed["x"]) for feed in read_data(model_with_input("uint8[N, 1, 2, 4]"), paths)] == [1] * 5
    with pytest.raises(UsageError, match="takes batches of 8 images, and the data has 5"):
        read_data(model_with_input("uint8[8, 1, 2, 4]"), paths)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("stretch", [[200] * 4] * 4),
        ("crop", [[200] * 4] * 4),
        ("pad", [[0] * 4, [200] * 4, [200] * 4, [0] * 4]),
    ],
)
def test_images_of_another_size(tmp_path: Path, method: str, expected: list[list[int]]) -> None:
    path = save_image(tmp_path / "a.png", (200,), (8, 4))
    proto = model_with_input("uint8[N, 1, 4, 4]")
    with pytest.raises(UsageError, match=r"a\.png has 8 x 4 pixels, and the model takes 4 x 4") as caught:
        list(read_data(proto, path))
    assert "resize=" in str(caught.value.hint)
    (feed,) = read_data(proto, path, resize=method)
    assert feed["x"][0, 0].tolist() == expected
    (feed,) = read_data(model_with_input("uint8[N, 1, H, W]"), path, resize=method, dims={"H": 4, "W": 4})
    assert feed["x"][0, 0].tolist() == expected


def test_open_sizes_are_those_of_the_image(tmp_path: Path) -> None:
    paths = [save_image(tmp_path / "a.png", (1,), (8, 4)), save_image(tmp_path / "b.png", (1,), (2, 3))]
    proto = model_with_input("uint8[N, 1, H, W]")
    assert [feed["x"].shape for feed in read_data(proto, paths)] == [(1, 1, 4, 8), (1, 1, 3, 2)]
    with pytest.raises(UsageError, match=r"b\.png and a\.png are in one batch, and their sizes differ") as caught:
        list(read_data(proto, paths, dims={"N": 2}))
    hint = "give all images one size: dims={'H': 640, 'W': 640} resize='stretch' (or crop, pad)"
    assert caught.value.hint == hint
    with pytest.raises(UsageError, match=r"resize=\.\.\. needs the height and the width") as caught:
        read_data(proto, paths, resize="crop", dims={"H": 8})
    assert caught.value.hint == "set them, for example: dims={'W': 640} resize='crop'"


HALVES = """g (float[N, 3, height, width] image) => (float[N, 6, A, B] y) {
    sizes = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
    half = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (image)
    whole = Resize <mode = "nearest"> (half, , sizes)
    [skip] y = Concat <axis = 1> (image, whole) }"""


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ("height, width", "dims={'height': 640, 'width': 640} resize='stretch'"),
        ("side, side", "dims={'side': 640} resize='stretch'"),
        ("height, 8", "dims={'height': 640} resize='stretch'"),
    ],
)
def test_a_size_that_the_model_refuses_names_the_options(tmp_path: Path, sizes: str, options: str) -> None:
    """The model halves the image and doubles it again, so an odd height does not fit."""
    proto = model(HALVES.replace("height, width", sizes))
    path = save_image(tmp_path / "a.png", size=(8, 3))
    if sizes == "side, side":
        path = save_image(tmp_path / "a.png", size=(3, 3))
    data = read_data(proto, path, scale=1)
    with pytest.raises(ModelError, match="running Concat node") as caught:
        mixlist.check(proto, mixlist.load_policy(), data)
    assert caught.value.hint is not None
    assert "open and may not take this size" in caught.value.hint
    assert caught.value.hint.endswith(options)
    assert options in mixlist.bench(proto, proto, data, rounds=1).original.failure
    dims = {name: 8 for name in ("height", "width", "side") if f"'{name}':" in options}
    report = mixlist.check(proto, mixlist.load_policy(), read_data(proto, path, scale=1, dims=dims, resize="stretch"))
    assert report.batches == 1


def test_a_model_of_one_size_gets_no_hint_about_sizes(tmp_path: Path) -> None:
    proto = model(HALVES.replace("height, width", "3, 8"), check=False)
    data = read_data(proto, save_image(tmp_path / "a.png", size=(8, 3)), scale=1)
    with pytest.raises(ModelError) as caught:
        mixlist.check(proto, mixlist.load_policy(), data)
    assert "resize=" not in str(caught.value)


@pytest.mark.parametrize(
    ("declaration", "arguments", "says"),
    [
        ("float[N, 8]", {"scale": 1}, "does not look like images: no axis of its last three has 1 or 3 channels"),
        ("float[N, 3, H, 3]", {"scale": 1}, "both ends of its last three has 1 or 3 channels"),
        ("float[N, C, H, W]", {"scale": 1}, "does not look like images"),
        ("float[N, 3, 2, 4]", {"scale": [1, 2]}, "scale=... has 2 numbers, and input .* has 3 channels"),
        ("float[N, 1, 2, 4]", {"scale": 1, "bgr": True}, "bgr=True is for 3 channels"),
        ("float[N, 3, H, W]", {"scale": 1, "resize": "crop"}, "resize=... needs the height and the width"),
        ("float[N, 3, 2, 4]", {"scale": 1, "resize": "zoom"}, "resize 'zoom' is not known"),
        ("float[N, 3, 2, 4]", {"scale": 1, "dims": {"M": 1}}, "M"),
        ("float[N, 3, 2, 4]", {"scale": 1, "dims": {"N": 0}}, "a size is 0"),
        (
            "float[2] w, float[N, 3, 2, 4]",
            {"scale": 1},
            "images are data for a model with one input, and this .* has 2",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, declaration: str, arguments: dict[str, Any], says: str) -> None:
    path = save_image(tmp_path / "a.png")
    with pytest.raises(UsageError, match=says):
        list(read_data(model_with_input(declaration), path, **arguments))


def test_a_model_with_two_inputs_takes_no_images(tmp_path: Path) -> None:
    proto = model("g (float[2] w, float[N, 3, 2, 4] x) => (float[N, 3, 2, 4] y) { y = Neg (x) }")
    with pytest.raises(UsageError, match="images are data for a model with one input, and this model has 2") as caught:
        read_data(proto, save_image(tmp_path / "a.png"), scale=1)
    assert "yields batches" in str(caught.value.hint)


def test_files_that_are_no_8_bit_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model_with_input("uint8[N, 1, 2, 4]")
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(np.full((2, 4), 40000, np.uint16)).save(tmp_path / "wide.png")
    save_image(tmp_path / "whole.png").rename(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:45])
    for name, says in (("text", "cannot read the image"), ("wide", "more than 8 bits"), ("cut", "cannot read")):
        with pytest.raises(FileError, match=says):
            list(read_data(proto, tmp_path / f"{name}.png"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)  # a small file can claim to be huge
    with pytest.raises(FileError, match="cannot read the image"):
        list(read_data(proto, save_image(tmp_path / "huge.png")))


def test_images_among_other_data_are_refused(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png")
    np.savez(tmp_path / "b.npz", x=np.ones(2))
    with pytest.raises(MixlistError, match=r"contains images and \.npz files"):
        read_data(model_with_input("uint8[N, 1, 2, 4]"), tmp_path)


def test_without_pillow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_image(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match="images need the package Pillow") as caught:
        read_data(model_with_input("uint8[N, 1, 2, 4]"), path)
    assert caught.value.hint == "pip install pillow"
