"""``mixlist demo``: convert the bundled network, explain a decision, validate and apply a list, run the results.

The original runs on ONNX Runtime's CPU provider in float32. The mixed models run on onnx's reference evaluator, which
computes every node in its type. ONNX Runtime's CPU provider would compute most float16 nodes in float32 and hide an
overflow.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.parameters import PathType
from mixlist.errors import FileError
from mixlist.files import package_data
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.scratch_folder import ScratchFolder
from mixlist.installed_runtime import require_onnxruntime
from mixlist.number_text import format_share
from mixlist.show import terminal
from mixlist.show.document import Document, Section, Table, Text, columns_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_MODEL_FILES = ("digits.mixed.onnx", "digits.converted.onnx", "digits.all_low.onnx")
# The files of ``demo_data`` that the documents use in their commands.
_BUNDLED_FILES = (
    "digits.onnx",
    "digits.npz",
    "digits_mixlist.json",
    "digits_train.npz",
)
_OUTPUT_FOLDER = PathType("writes into", must_be_new=True, files=(*_MODEL_FILES, *_BUNDLED_FILES))


@click.command(
    "demo",
    cls=FileCheckingCommand,
    params=[
        GroupedOption(
            "-o --output",
            "output",
            "Keep the models, the list and the data in this folder.",
            metavar="DIR",
            type=_OUTPUT_FOLDER,
        ),
        GroupedOption("--force", "output", "Replace existing files in the folder.", is_flag=True),
    ],
)
def command(output: str | None, force: bool) -> None:
    """Convert, explain, validate, apply and run the bundled model.

    The demo shows every step on a small network that reads handwritten digits: it converts the network, explains a
    decision, validates a list, writes the network under it, and compares the results. Without --output it keeps no
    file. With --output you can try the commands of the documents in the folder.

    \b
    Example:
      mixlist demo
      mixlist demo -o demo
    """
    run(Path(output) if output else None, force=force)


def run(output: Path | None = None, *, force: bool = False) -> None:
    """Run the demo, and keep the rewritten models and the bundled files in the folder ``output``, if any.

    ``force``: replace files that are in the folder already.
    """
    if output is None:
        with ScratchFolder() as folder:
            _run(folder, keep=False, force=False)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError(f"{output}: this folder cannot be created: {problem.strerror}") from problem
    _run(output, keep=True, force=force)


def _run(folder: Path, *, keep: bool, force: bool) -> None:
    import numpy as np

    require_onnxruntime()  # before the first step, not in the last one
    data = package_data.data_folder("demo_data")
    model, list_file = data / "digits.onnx", data / "digits_mixlist.json"
    replace = ("--force",) if force else ()
    with np.load(data / "digits.npz") as arrays:
        pixels, labels = arrays["pixels"].astype(np.float32), arrays["labels"]

    print(f"A network that reads handwritten digits, and {len(labels)} digits it has not seen:")
    print(_sketch(pixels[:6]))
    _step(1, "Convert the model, and keep its outputs")
    # This command prints the path of its output, so it runs in the folder of the output.
    write_atomically(folder / model.name, model.read_bytes())
    data_options = ("--random", "2", "--dim", "batch=16", "--range", "pixels=0:16")
    _run_command(folder, "convert", model.name, "-o", _MODEL_FILES[1], *data_options, *replace)
    _step(2, "Follow the decision from one node to the node that caused it")
    _run_command(data, "resolve", model.name, "--explain", "/attention/Softmax")
    _step(3, "Validate a list file")
    print(f"{list_file.name}:\n{list_file.read_text(encoding='utf-8')}")
    _run_command(data, "validate", list_file.name)
    _step(4, "Write the model under this list, without data")
    output = (folder / _MODEL_FILES[0]).absolute()
    _run_command(data, "apply", model.name, "-o", str(output), "--mixlist", list_file.name, *replace)

    _step(5, "Run it, and compare it with the model under other lists")
    _show_outcome(_run_policies(model, list_file, folder, force, pixels, labels), len(labels))
    if keep:
        _copy_bundled_files(folder)
        print(f"\nThe models, the list and the data are in {folder}.")
    print(f"\nNext, with your own model: {_program()} convert model.onnx -o fp16.onnx --data batches/")


def _program() -> str:
    """Return the name under which a shell in this folder finds mixlist, also where it is in no folder of PATH."""
    started = sys.argv[0]
    on_path = shutil.which("mixlist")
    is_other = Path(started).stem == "mixlist" and not (on_path and Path(on_path).samefile(started))
    return started if is_other else "mixlist"


def _copy_bundled_files(folder: Path) -> None:
    for name in _BUNDLED_FILES:
        write_atomically(folder / name, (package_data.data_folder("demo_data") / name).read_bytes())


def _run_command(folder: Path, *args: str) -> None:
    """Print a command, and run it in a folder. Raises the errors of the command."""
    from mixlist.cli import command_group
    from mixlist.cli.parameters import NO_CONFIG

    # Only the name of the output file is shown: its folder may be a scratch folder with a long random name.
    shown_args = [Path(arg).name if arg.endswith(".onnx") else arg for arg in args]
    print(terminal.paint(f"$ mixlist {' '.join(shown_args)}", "cyan", sys.stdout), flush=True)
    # The demo is one report: what the commands write to standard error belongs to it, in the same order.
    with contextlib.chdir(folder), contextlib.redirect_stderr(sys.stdout):
        # The folder of the data can be inside a project, whose configuration would change the demo.
        command_group.run([*args, "--config", NO_CONFIG])


def _run_policies(
    model: Path, list_file: Path, folder: Path, force: bool, pixels: NDArray[np.float32], labels: NDArray[np.uint8]
) -> list[list[str]]:
    """Run the two models that the steps have written, and one with every node low; return a row for each model."""
    import mixlist
    from mixlist.lists.load import load_policy

    # The lists as they are, which give the converted model here, the edited lists, and float16 everywhere.
    policies = (
        ("converted", load_policy(), _MODEL_FILES[1], True),
        ("lists, edited", load_policy(mixlist=list_file), _MODEL_FILES[0], True),
        ("all low (fp16)", load_policy(precision_mode_v2="fp16"), _MODEL_FILES[2], force),
    )
    rows = []
    for title, policy, name, may_replace in policies:
        path = folder / name
        result = mixlist.rewrite(model, mixlist.resolve(model, policy))
        result.save(path, force=may_replace)
        logits, overflow = run_reference_evaluator(path, pixels)
        right = _share(logits.argmax(1) == labels)
        low, casts = f"{result.low} of {result.eligible}", str(result.casts_inserted)
        rows.append([title, low, casts, _size(path), right, overflow or "none", "onnx.reference"])
    # All policies have the same eligible nodes. The original has none of them in low precision and no Cast of mixlist.
    right = _share(_run_original(model, pixels) == labels)
    return [["original", f"0 of {result.eligible}", "0", _size(model), right, "-", "ONNX Runtime"], *rows]


def run_reference_evaluator(path: Path, pixels: NDArray[np.float32]) -> tuple[NDArray[Any], str]:
    """Return the logits of onnx's reference evaluator, and the first node whose output is not finite, or ""."""
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    with np.errstate(all="ignore"):  # an overflow is expected here
        values: Any = ReferenceEvaluator(model).run(None, {"pixels": pixels}, intermediate=True)
    # ``intermediate=True`` returns every tensor. The nodes are in topological order, so the first one found starts the
    # overflow.
    for node in model.graph.node:
        for name in node.output:
            value = values[name]
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                return values["logits"], node.name
    return values["logits"], ""


def _run_original(path: Path, pixels: NDArray[np.float32]) -> NDArray[np.int64]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    predictions: NDArray[np.int64] = session.run(None, {"pixels": pixels})[0].argmax(1)
    return predictions


def _step(number: int, title: str) -> None:
    print(f"\n{terminal.paint(f'{number}. {title}', 'bold', sys.stdout)}\n")


def _sketch(pixels: NDArray[np.float32]) -> str:
    """Return the images as text, side by side, with two characters for each pixel.

    ``pixels``: (images, 1, height, width), values from 0 to 16.
    """
    # 0 is a blank, 16 is #: four steps between the five characters.
    shades = " .:*#"
    # The 0 after each row of an image is a blank column between two images.
    rows = [[shades[int(value) * (len(shades) - 1) // 16] * 2 for image in pixels[:, 0] for value in (*image[y], 0)]
            for y in range(pixels.shape[2])]  # fmt: skip
    return "\n".join("  " + "".join(row).rstrip() for row in rows)


def _show_outcome(rows: Sequence[Sequence[str]], image_count: int) -> None:
    columns = ["model", "low nodes", "Casts added", "file", f"right of {image_count}", "first overflow", "computed by"]
    lines = (
        "onnx.reference computes every node in its type in the file.",
        "ONNX Runtime's CPU provider runs most float16 nodes in float32, which would hide the overflow.",
        "With everything in float16, the sum in /energy/ReduceSum exceeds 65504, the largest float16.",
        "The lists keep this sum of squares in float32, from the squares up to the quotient.",
    )
    sections = (Section("models", "", (Table(columns_of(*columns), rows),)), Section("why", "", (Text(lines),)))
    terminal.write_document(Document("demo", sections), sys.stdout)


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.1f} kB"


def _share(right: NDArray[np.bool_]) -> str:
    return format_share(float(right.mean()))
