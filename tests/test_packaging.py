"""The wheel: what is in it, and that it behaves as the checkout does."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Run out of the checkout's folder, and without its PYTHONPATH: only what is installed can be found.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment's bin folder: mixlist from the wheel, its dependencies from the running environment.

    A .pth file names the folder of the dependencies; .pth files in that folder, an editable mixlist's
    among them, are not read.
    """
    home = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, env=CLEAN)
    python = home / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, env=CLEAN, capture_output=True)
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(ask, check=True, env=CLEAN, capture_output=True, text=True).stdout.strip())
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def call(*command: str | Path, cwd: Path) -> str:
    ran = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_wheel_holds_the_data_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for top in ("schemas", "sample_lists"):
            there = [path for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
            assert there
            for path in there:
                assert archive.read(f"mixlist/{path.relative_to(ROOT).as_posix()}") == path.read_bytes()
    assert {"mixlist/py.typed", "mixlist/docs/codes.md", "mixlist/demo_data/digits.onnx"} <= names
    assert {
        f"mixlist/report/templates/{name}" for name in ("check.html", "macros.html", "page.css", "check.js")
    } <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "tools", "benchmarks"))]


def test_it_is_the_wheel_that_runs(installed: Path, tmp_path: Path) -> None:
    home = call(installed / "python", "-c", "import mixlist; print(mixlist.__file__)", cwd=tmp_path)
    assert Path(home).is_relative_to(installed.parent)


def test_the_demo_runs_from_the_wheel_as_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    told = call(installed / "mixlist", "demo", cwd=tmp_path)
    assert told == call(sys.executable, "-m", "mixlist", "demo", cwd=ROOT)


def test_wheel_and_checkout_give_the_same_answers(installed: Path, tmp_path: Path) -> None:
    modify = tmp_path / "modify.json"
    modify.write_text('{"gray-list": {"to-add": ["Conv2D"]}}')
    for arguments in (
        ("--help",),
        ("presets",),
        ("lists", "--ops-info", "ascend910b", "--mixlist", modify),
        ("validate", modify, "--format", "sarif"),
    ):
        expected = call(sys.executable, "-m", "mixlist", *arguments, cwd=ROOT)
        assert call(installed / "mixlist", *arguments, cwd=tmp_path) == expected
        assert call(installed / "python", "-m", "mixlist", *arguments, cwd=tmp_path) == expected
