"""Make batches of images: files as the one image input of a model takes them.

A value is (pixel - mean) x scale, with pixels from 0 to 255, channel by channel in the order of the model. An input of
floats needs ``mean`` or ``scale``, because no default is right for most models; integers take the pixels as they are.
Pillow decodes an image and converts its colors to those of the input: RGB for 3 channels, gray for 1. The layout
follows from the shape of the input: the axis with 3 or 1 channels is before or after the height and the width. Each
image is one sample, and a batch has as many samples as the model takes; a size that the model leaves open comes from
``--dim``. Without it, a batch has one image, and the height and the width are those of the image. An image of another
size is refused, unless ``resize`` changes it: ``stretch`` scales each side, ``crop`` keeps the proportions and cuts off
in the middle, ``pad`` keeps them and adds black. Images at the end that do not fill a fixed batch are left out (ML610).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import FileError, UsageError
from mixlist.files.regular_files import open_regular
from mixlist.model import dtypes
from mixlist.option_spelling import Verbatim, spell
from mixlist.run.batch_files import BatchSource
from mixlist.run.inputs import Input
from mixlist.run.random_feeds import expand_sizes

if TYPE_CHECKING:
    from PIL import Image

    from mixlist.run.session import Array

RESIZE_METHODS = ("stretch", "crop", "pad")
_MODES = {1: "L", 3: "RGB"}  # Pillow's name of the colors, by the number of channels
_WIDE_MODES = ("I", "F")  # the first letter of Pillow's modes with more than 8 bits for a channel
_IMAGENET_MEAN, _IMAGENET_SCALE = (123.675, 116.28, 103.53), (0.01712475, 0.017507, 0.01742919)


@dataclass(frozen=True)
class ImageOptions:
    """The numbers and choices by which images become values.

    ``mean`` and ``scale``: one number for each channel, one number for all channels, or () for 0 and 1. ``resize``:
    how an image of another size gets the model's size, None to refuse it: ``stretch`` changes its proportions, ``crop``
    cuts off what is too long in the middle, and ``pad`` adds black. ``bgr``: the channels of the model are blue, green
    and red. ``dims``: the sizes that the model leaves open, as ``random_feeds.expand_sizes`` takes them.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    resize: str | None = None
    bgr: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The command line admits only the declared choices, Python any value.
        if self.resize is not None and self.resize not in RESIZE_METHODS:
            raise UsageError(f"resize {self.resize!r} is not known", hint=f"use {', '.join(RESIZE_METHODS)}")


class _ImageInput(NamedTuple):
    """The image input of a model. ``batch``, ``height`` and ``width`` are None if they are open.

    ``has_batch_axis``: False for an input of one image. ``fixed_batch``: the model states the batch size itself.
    ``open_sizes``: the names for ``--dim`` of the height and the width, if they are open.
    """

    name: str
    channels: int
    height: int | None
    width: int | None
    channels_first: bool
    has_batch_axis: bool
    batch: int | None
    fixed_batch: bool
    open_sizes: tuple[str, ...]
    options: ImageOptions

    def size_options(self) -> str:
        """Return an example of the options that give all images one size."""
        dims = f"{spell('dims', dict.fromkeys(self.open_sizes, 640))} " if self.open_sizes else ""
        return f"{dims}{spell('resize', self.options.resize or 'stretch')}"


def make_image_sources(
    paths: Sequence[Path], inputs: Sequence[Input], options: ImageOptions
) -> tuple[list[BatchSource], list[Diagnostic]]:
    """Return the batches of some images, and a warning if the last images do not fill a batch.

    Raises UsageError if the model has no image input, or if the options do not fit it.
    """
    _require_pillow(paths[0])
    image_input = _describe_input(paths[0], inputs, options)
    size = image_input.batch or 1
    groups = [paths[start : start + size] for start in range(0, len(paths), size)]
    found_warnings = []
    if image_input.fixed_batch and len(groups[-1]) < size:
        left_out = groups.pop()
        if not groups:
            raise UsageError(
                f"the model takes batches of {size} images, and the data has {len(paths)}", hint="give more images"
            )
        verb = "image is" if len(left_out) == 1 else f"{len(left_out)} images are"
        message = f"the last {verb} left out: the model takes batches of {size}, and there are {len(paths)} images"
        found_warnings.append(warning("ML610", message, path=str(left_out[0])))
    hint = None
    if image_input.open_sizes:
        names = " and ".join(image_input.open_sizes)
        # Many models take only some sizes, such as multiples of 32, and declare all.
        hint = (
            f"the model leaves {names} open and may not take this size: give one that it takes, for example"
            f" {image_input.size_options()}"
        )
    sources = []
    for group in groups:
        name = str(group[0]) if len(group) == 1 else f"{group[0]} to {group[-1].name}"
        sources.append(BatchSource(name, partial(_read_batch, group, image_input), tuple(group), hint))
    return sources, found_warnings


def _require_pillow(path: Path) -> None:
    from importlib.util import find_spec

    if find_spec("PIL") is None:
        raise UsageError(f"{path}: images need the package Pillow", hint="pip install pillow")


# --- the input ---


def _describe_input(path: Path, inputs: Sequence[Input], options: ImageOptions) -> _ImageInput:
    """Return the image input of a model, with the sizes of ``options.dims``. Raises UsageError if there is none."""
    required = [model_input for model_input in inputs if not model_input.optional] or list(inputs)
    if len(required) != 1:
        names = ", ".join(map(str, required[:12]))
        _refuse(f"{path}: images are data for a model with one input, and this model has {len(required)}: {names}")
    model_input = required[0]
    sizes = expand_sizes(inputs, options.dims)
    shape = [
        size if isinstance(size, int) else sizes.get(f"{model_input.name}.{axis}", sizes.get(size or ""))
        for axis, size in enumerate(model_input.shape or ())
    ]
    first, last = (len(shape) in (3, 4) and shape[axis] in _MODES for axis in (-3, -1))
    if first == last or isinstance(model_input.type, tuple):
        both = "both ends" if first else "no axis"
        _refuse(f"{path}: input {model_input} does not look like images: {both} of its last three has 1 or 3 channels")
    height, width = shape[-2:] if first else shape[-3:-1]
    channels = shape[-3] if first else shape[-1]
    declared_shape = model_input.shape or ()
    batch_axis = declared_shape[0] if len(shape) == 4 else 1
    # Negative positions of the height and the width: the batch axis may be missing.
    open_axes = [axis for axis in ((-2, -1) if first else (-3, -2)) if shape[axis] is None]
    open_sizes = [declared_shape[axis] or f"{model_input.name}.{len(shape) + axis}" for axis in open_axes]
    image_input = _ImageInput(
        model_input.name, channels or 1, height, width,
        channels_first=first, has_batch_axis=len(shape) == 4, batch=shape[0] if len(shape) == 4 else 1,
        fixed_batch=isinstance(batch_axis, int), open_sizes=tuple(dict.fromkeys(map(str, open_sizes))),
        options=options,
    )  # fmt: skip
    return _check_options(image_input, model_input)


def _check_options(image_input: _ImageInput, model_input: Input) -> _ImageInput:
    """Return the input with a mean and a scale for each channel. Raises UsageError if the options do not fit it."""
    options, channels = image_input.options, image_input.channels
    for name, numbers in (("mean", options.mean), ("scale", options.scale)):
        if len(numbers) not in (0, 1, channels):
            message = f"{spell(name)} has {len(numbers)} numbers, and input {model_input} has {channels} channels"
            raise UsageError(message, hint="give one number, or one for each channel")
    # Every guess would be wrong for some models, and wrong values make a wrong verdict on overflow.
    if dtypes.element(model_input.type) in dtypes.FLOATS and not (options.mean or options.scale):
        message = f"input {model_input} takes floats, and nothing says how pixels become floats"
        imagenet = f"{spell('mean', _IMAGENET_MEAN)} {spell('scale', _IMAGENET_SCALE)}"
        raise UsageError(
            message,
            hint=f"for values from 0 to 1 {spell('scale', Verbatim('1/255'))}, for the usual ImageNet values"
            f" {imagenet}, for pixels from 0 to 255 {spell('scale', 1)}",
        )
    if options.bgr and channels != 3:
        message = f"{spell('bgr', True)} is for 3 channels, and input {model_input} has {channels}"
        raise UsageError(message, hint="leave it out")
    if options.resize is not None and image_input.open_sizes:
        message = f"{spell('resize')} needs the height and the width, which input {model_input} leaves open"
        raise UsageError(message, hint=f"set them, for example: {image_input.size_options()}")
    if 0 in (image_input.batch, image_input.height, image_input.width):
        message = f"input {model_input} would take no pixels: a size is 0"
        raise UsageError(message, hint=f"give other sizes with {spell('dims')}")
    return image_input._replace(options=replace(options, mean=options.mean or (0.0,), scale=options.scale or (1.0,)))


def _refuse(message: str) -> NoReturn:
    raise UsageError(
        message,
        hint="an image input has the shape [N, 3, H, W], [N, H, W, 3] or one of these without N, with 3 or 1 channels;"
        f" for other models, write a Python function that yields batches, and give {spell('loader')}",
    )


# --- the pixels ---


def _read_batch(paths: Sequence[Path], image_input: _ImageInput) -> Mapping[str, object]:
    """Return one batch: the images of ``paths`` in the layout of the input."""
    import numpy as np

    samples = [_read_sample(path, image_input) for path in paths]
    for path, sample in zip(paths, samples, strict=True):
        if sample.shape != samples[0].shape:
            raise UsageError(
                f"{path} and {paths[0].name} are in one batch, and their sizes differ",
                hint=f"give all images one size: {image_input.size_options()} (or crop, pad)",
            )
    return {image_input.name: np.stack(samples) if image_input.has_batch_axis else samples[0]}


def _read_sample(path: Path, image_input: _ImageInput) -> Array:
    """Return the values of one image: uint8 if nothing changes its pixels, else float32."""
    import numpy as np

    options = image_input.options
    pixels: Array = np.asarray(_fit_size(path, _open_image(path, image_input.channels), image_input))
    pixels = pixels.reshape((*pixels.shape[:2], image_input.channels))
    if options.bgr:
        pixels = pixels[:, :, ::-1]
    if options.mean != (0.0,) or options.scale != (1.0,):
        pixels = ((pixels - np.array(options.mean)) * np.array(options.scale)).astype(np.float32)
    return np.moveaxis(pixels, 2, 0) if image_input.channels_first else pixels


def _open_image(path: Path, channels: int) -> Image.Image:
    """Return a decoded image in the colors of the input. Raises FileError for a file that Pillow cannot decode."""
    from PIL import Image

    try:
        # Pillow warns of an image with very many pixels, which a small file can claim to have.
        with warnings.catch_warnings(), open_regular(path) as file:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(file)
            image.load()
    except (FileError, MemoryError):
        raise
    except OSError as error:
        raise FileError(f"cannot read the image {path}: {error.strerror or error}") from None
    except Exception as error:  # the decoders raise many types for damage
        raise FileError(f"cannot read the image {path}: {error}") from None
    if image.mode.startswith(_WIDE_MODES):
        raise FileError(f"{path} has more than 8 bits for a channel", hint="convert it to 8 bits, or write a .npy file")
    return image.convert(_MODES[channels])


def _fit_size(path: Path, image: Image.Image, image_input: _ImageInput) -> Image.Image:
    """Return the image in the size of the input. Raises UsageError if it has another one and nothing may resize it."""
    from PIL import Image, ImageOps

    size = image_input.width or image.width, image_input.height or image.height
    if image.size == size:
        return image
    bilinear = Image.Resampling.BILINEAR
    match image_input.options.resize:
        case "stretch":
            return image.resize(size, bilinear)
        case "crop":
            return ImageOps.fit(image, size, bilinear)
        case "pad":
            return ImageOps.pad(image, size, bilinear)
    raise UsageError(
        f"{path} has {image.width} x {image.height} pixels, and the model takes {size[0]} x {size[1]} (width x height)",
        hint=f"give {spell('resize', 'stretch')}, or crop or pad, which keep the proportions",
    )
