"""The wheel and the sdist: their files, their page on a package index, and commands as in the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from readme_renderer import markdown

from tests.support.action_steps import run_step

ROOT = Path(__file__).parents[1]
# Commands run outside the checkout and without its PYTHONPATH, so that they import only installed packages.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build what a release uploads: the sdist, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("release")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    ((sdist,), (built,)) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a new environment, into which the GitHub Action installed mixlist from the wheel.

    Its dependencies come from the running environment: a .pth file names their folder. Python does not read the .pth
    files in that folder, so an editable mixlist there is not imported.
    """
    folder = tmp_path_factory.mktemp("action")
    no_download = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": ""}
    runner = {"RUNNER_TEMP": str(folder), "RUNNER_OS": "Linux", "GITHUB_ACTION_PATH": str(wheel)}
    end = run_step("install", {}, folder, python=sys.executable, **runner, **no_download)
    assert end.status == 0, end.err
    (scripts,) = map(Path, end.added_paths)
    query = [str(scripts / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site_packages = Path(subprocess.run(query, check=True, env=CLEAN, capture_output=True, text=True).stdout.strip())
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return scripts


def call(*command: str | Path, cwd: Path) -> str:
    """Return the standard output of a command, which must succeed."""
    completed = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_the_wheel_holds_the_data_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for top in ("schemas", "sample_lists"):
            files = [path for path in (ROOT / top).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
            assert files
            for path in files:
                assert archive.read(f"mixlist/{path.relative_to(ROOT).as_posix()}") == path.read_bytes()
    assert {"mixlist/py.typed", "mixlist/docs/codes/ml1.md", "mixlist/demo_data/digits.onnx"} <= names
    assert {
        f"mixlist/show/templates/{name}" for name in ("document.html", "page.html", "page.css", "lists.js")
    } <= names
    assert {f"mixlist/show/third_party/{name}" for name in ("dagre.min.js", "dagre.LICENSE", "README.md")} <= names
    assert {"mixlist/show/templates/view.html", "mixlist/show/templates/view/page.js"} <= names
    for license_file in ("LICENSE", "mixlist/show/third_party/dagre.LICENSE"):
        assert any(name.endswith(f".dist-info/licenses/{license_file}") for name in names)
    assert not [name for name in names if name.startswith(("tests", "tools", "benchmarks"))]


def test_the_sdist_builds_the_same_wheel_as_the_checkout(distributions: tuple[Path, Path], wheel: Path) -> None:
    sdist, built = distributions
    assert built.name == wheel.name
    with zipfile.ZipFile(built) as from_sdist, zipfile.ZipFile(wheel) as from_checkout:
        assert set(from_sdist.namelist()) == set(from_checkout.namelist())
        assert [name for name in from_sdist.namelist() if from_sdist.read(name) != from_checkout.read(name)] == []
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "docs/index.md", "tests/test_packaging.py", "Makefile"} <= names


def test_a_package_index_accepts_the_distributions_and_renders_the_readme(distributions: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout
    page = markdown.render((ROOT / "README.md").read_text("utf-8"))
    assert page is not None
    for tag in ("<h1", "<img", "<pre", "<table"):
        assert tag in page, tag


def test_the_links_of_the_readme_are_absolute_once_the_repository_has_an_address() -> None:
    """A package index shows no relative picture. The address is not known before the first release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert links
    assert "urls" not in project or all(link.startswith("https://") for link in links)


def test_the_environment_imports_mixlist_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    home = call(installed / "python", "-c", "import mixlist; print(mixlist.__file__)", cwd=tmp_path)
    assert Path(home).is_relative_to(installed.parent)


def test_the_demo_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    output = call(installed / "mixlist", "demo", cwd=tmp_path)
    # The demo ends with a command as it works in this shell, where mixlist is in no folder of PATH.
    assert "98.9 %" in output and f"{installed / 'mixlist'} convert" in output


def test_commands_print_the_same_from_the_wheel_and_the_checkout(installed: Path, tmp_path: Path) -> None:
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
