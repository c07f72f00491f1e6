"""Python functions that yield batches, and the temporary files that hold the batches of an iterator."""

from __future__ import annotations

import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from mixlist.errors import FileError, MixlistError, UsageError
from mixlist.run.feeds import as_batches, store_batches
from mixlist.run.python_function import run_loader
from tests.support.builders import model

PROTO = model("g (float[N] x) => (float[N] y) { y = Neg (x) }")
HEAD = "import numpy as np\n\n\n"
FUNCTION = HEAD + "def batches():\n    for value in range(3):\n        yield {'x': np.full(2, value, np.float32)}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of its own, and forget the modules and paths that a test imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr("sys.modules", sys.modules.copy())
    return tmp_path


def first_values(data: object, **arguments: Any) -> list[float]:
    return [float(feed["x"][0]) for feed in as_batches(data, PROTO, **arguments)]


@pytest.mark.parametrize(
    "content",
    [
        FUNCTION,
        HEAD + "batches = [{'x': np.full(2, value)} for value in range(3)]\n",
        HEAD + "def batches():\n    return [{'x': np.full(2, value)} for value in range(3)]\n",
        HEAD
        + "class batches:\n    count = 0\n\n    def __iter__(self):\n        return self\n\n    def __next__(self):\n"
        + "        self.count += 1\n        if self.count > 3:\n            raise StopIteration\n"
        + "        return {'x': np.full(2, self.count - 1)}\n",
        "from neighbor import batches\n",
    ],
)
@pytest.mark.parametrize("form", ["data/loader.py:batches", "loader:batches"])
def test_what_a_loader_can_be(folder: Path, content: str, form: str) -> None:
    place = folder / "data" if "/" in form else folder
    place.mkdir(exist_ok=True)
    (place / "neighbor.py").write_text(FUNCTION)
    (place / "loader.py").write_text(content)
    assert first_values(run_loader(form)) == [0, 1, 2]


def test_a_file_may_have_the_name_of_a_module(folder: Path) -> None:
    random = sys.modules["random"]
    (folder / "random.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass A:\n    x: int\n\n\nbatches = [{'x': [A(3).x]}]\n"
    )
    assert first_values(run_loader("random.py:batches")) == [3]
    assert sys.modules["random"] is random


def test_a_dict_is_one_batch(folder: Path) -> None:
    (folder / "loader.py").write_text("def batches():\n    return {'x': [7, 8]}\n")
    assert first_values(run_loader("loader.py:batches")) == [7]


class Failure(NamedTuple):
    """A loader that fails, and the message of the error without the folder."""

    content: str
    message: str


FAILURES = {
    "in the function": Failure(
        "def batches():\n    yield {'x': [1]}\n    yield {'x': 1 / 0}\n",
        "loader.py:3: the loader loader.py:batches raised ZeroDivisionError: division by zero",
    ),
    "in a library": Failure(
        "import json\n\n\ndef batches():\n    return json.loads('')\n",
        "loader.py:5: the loader loader.py:batches raised JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    ),
    "at the import": Failure(
        "import no_such_package\n",
        "loader.py:1: the loader loader.py:batches raised ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "a class of its own": Failure(
        "class Stop(BaseException):\n    pass\nraise Stop('now')\n",
        "loader.py:3: the loader loader.py:batches raised Stop: now",
    ),
    "exit": Failure("import sys\nsys.exit(3)\n", "loader.py:2: the loader loader.py:batches raised SystemExit: 3"),
    "arguments": Failure(
        "def other():\n    pass\n\n\ndef batches(size, *, seed):\n    pass\n",
        "loader.py:5: the loader loader.py:batches takes arguments (size, *, seed), and mixlist calls it without any",
    ),
    "name": Failure("def batch():\n    pass\n", "the loader loader.py:batches: loader.py has no 'batches'"),
    "nothing": Failure("def batches():\n    pass\n", "the loader loader.py:batches gives None, and not batches"),
    "text": Failure("batches = 'x'\n", "the loader loader.py:batches gives an object of the type str, and not batches"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_name_the_line_of_the_loader(folder: Path, name: str) -> None:
    (folder / "loader.py").write_text(FAILURES[name].content)
    with pytest.raises(UsageError) as caught:
        store_batches(run_loader("loader.py:batches"))
    assert caught.value.message.replace(f"{folder}/", "") == FAILURES[name].message
    assert caught.value.hint


def test_a_syntax_error_names_its_line(folder: Path) -> None:
    (folder / "loader.py").write_text("def batches():\n    yield {\n")
    with pytest.raises(
        UsageError, match=r"loader\.py:2: the loader loader\.py:batches raised SyntaxError: '\{' was never"
    ):
        list(run_loader("loader.py:batches"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loader.py", r"the loader loader\.py: this is not FILE\.py:FUNCTION or MODULE:FUNCTION"),
        ("loader.py:", "this is not"),
        (":batches", "this is not"),
        ("loader.py:a b", "this is not"),
        ("none.py:batches", r"none\.py: there is no such file"),
        ("no_such_module:batches", "there is no module no_such_module"),
    ],
)
def test_texts_that_name_no_loader(text: str, says: str) -> None:
    with pytest.raises(MixlistError, match=says):
        list(run_loader(text))


def test_similar_names_are_suggested(folder: Path) -> None:
    (folder / "loader.py").write_text("def batches():\n    pass\n")
    with pytest.raises(UsageError) as caught:
        list(run_loader("loader.py:batch"))
    assert caught.value.hint == "did you mean batches? it has batches"


def test_prints_of_a_loader_go_to_standard_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "loader.py").write_text("print('a')\n\n\ndef batches():\n    print('b')\n    yield {'x': [1]}\n")
    list(run_loader("loader.py:batches"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a\nb\n")


# --- stored batches ---


def test_a_generator_is_read_once_and_its_batches_many_times() -> None:
    calls = []

    def generate() -> Iterator[dict[str, object]]:
        for value in range(4):
            calls.append(value)
            yield {"x": np.array([value, 0], np.float32)}

    batches = as_batches(generate(), PROTO)
    assert [float(feed["x"][0]) for feed in batches] == [float(feed["x"][0]) for feed in batches] == [0, 1, 2, 3]
    assert [float(feed["x"][0]) for feed in batches.select([3, 1])] == [3, 1]
    assert calls == [0, 1, 2, 3]
    assert batches.names() == ("batch 0", "batch 1", "batch 2", "batch 3")


def test_no_more_batches_are_read_than_needed() -> None:
    def generate() -> Iterator[dict[str, object]]:
        value = 0
        while True:
            yield {"x": [value]}
            value += 1

    assert first_values(generate(), limit=3) == [0, 1, 2]


def test_batches_of_other_packages_become_arrays() -> None:
    class Tensor:
        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            return np.array([4, 5], np.float32)

    class OnDevice:
        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            raise TypeError("copy it to the host first")

    assert first_values(iter([{"x": Tensor()}])) == [4]
    with pytest.raises(UsageError, match=r"batch 1: input 'x' is no array .*: copy it to the host first"):
        as_batches(iter([{"x": Tensor()}, {"x": OnDevice()}]), PROTO)


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([np.zeros(3)], "batch 0 of the data is an object of the type ndarray"),
        ([{"x": [1]}, (1, 2)], "batch 1 of the data is an object of the type tuple"),
        ([{"x": [1]}, {0: [1]}], "batch 1 of the data is a dict with keys that are no names of inputs"),
    ],
)
def test_batches_that_are_no_dicts(batches: list[Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        as_batches(iter(batches), PROTO)


def test_iterators_of_paths_and_of_nothing(folder: Path) -> None:
    np.savez(folder / "a.npz", x=np.ones(2))
    assert first_values(iter([folder / "a.npz"])) == [1]
    with pytest.raises(UsageError, match="the data is empty"):
        as_batches(iter([]), PROTO)
    with pytest.raises(FileError, match="no such file"):
        as_batches({"none.npz"}, PROTO)


def test_stored_batches_do_not_stay_in_memory() -> None:
    size = 4_000_000  # bytes of one batch

    def generate() -> Iterator[dict[str, object]]:
        for value in range(20):
            yield {"x": np.full(size // 4, value, np.float32)}

    tracemalloc.start()
    try:
        batches = as_batches(generate(), PROTO)
        total = sum(float(feed["x"][0]) for feed in batches)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == sum(range(20))
    assert peak < 5 * size


def test_the_files_of_stored_batches_are_removed_with_them() -> None:
    batches = store_batches([{"x": [1]}])
    place = batches[0].read.args[0].path  # type: ignore[attr-defined]
    assert [path.name for path in place.iterdir() if path.name != ".lock"] == ["0"]
    batches.clear()
    assert not place.exists()


def test_an_iterator_without_end_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**9 + 100))
    with pytest.raises(UsageError, match=r"the first 1 batches take .* no more space") as caught:
        store_batches({"x": np.zeros(100)} for _ in iter(int, 1))
    assert "max_batches" in str(caught.value.hint)
