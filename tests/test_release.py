"""``make release``: refusals, the section of the changelog, and a whole release of a clone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tools import release

ROOT = Path(__file__).parents[1]
CHANGELOG = """# Changelog

## 0.2.0 (unreleased)

- A line.

## 0.1.0 (2026-01-02)

- The first.
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small repository with the files that a release reads, all committed."""
    (tmp_path / "mixlist").mkdir()
    (tmp_path / "mixlist/version.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "Begin")
    return tmp_path


def test_the_newest_section_gets_the_date() -> None:
    dated = release.date_section(CHANGELOG, "0.2.0", "2026-12-01")
    assert dated == CHANGELOG.replace("(unreleased)", "(2026-12-01)")


@pytest.mark.parametrize(
    ("changelog", "message"),
    [
        (CHANGELOG.replace("0.2.0", "0.3.0"), r"must be '## 0\.2\.0 \(unreleased\)', and is '## 0\.3\.0"),
        (CHANGELOG.replace("unreleased", "2026-02-03"), "and is '## 0.2.0 .2026-02-03.'"),
        (CHANGELOG.replace("- A line.\n", ""), "has no lines"),
        ("# Changelog\n", "no section"),
    ],
)
def test_a_changelog_without_the_section_is_refused(changelog: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        release.date_section(changelog, "0.2.0", "2026-12-01")


def test_changed_files_are_refused(project: Path) -> None:
    (project / "new.txt").write_text("")
    with pytest.raises(SystemExit, match=r"(?s)no commit has.*new\.txt"):
        release.release(project, "2026-12-01")


def test_a_version_with_a_tag_is_refused(project: Path) -> None:
    git(project, "tag", "v0.2.0")
    with pytest.raises(SystemExit, match=r"the tag v0\.2\.0 exists"):
        release.release(project, "2026-12-01")


def test_a_failed_check_leaves_the_changelog(project: Path) -> None:
    with pytest.raises(SystemExit, match="no release: make ended with"):
        release.release(project, "2026-12-01", checks=("absent",))
    assert (project / "CHANGELOG.md").read_text() == CHANGELOG


@pytest.mark.skipif(not os.environ.get("MIXLIST_CAMPAIGN"), reason="MIXLIST_CAMPAIGN=1 runs it")
def test_a_clone_with_an_address_is_released(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first call names what needs the address; with the address, the second prints the commands."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", str(ROOT), str(clone))
    version = release.read_version(clone)
    with pytest.raises(SystemExit, match=r"(?s)no release yet.*pyproject\.toml.*docs/guides/ci\.md: replace <address"):
        release.release(clone, "2026-12-01", checks=())
    assert "(unreleased)" in (clone / "CHANGELOG.md").read_text("utf-8")
    guide, settings = clone / "docs/guides/ci.md", clone / "pyproject.toml"
    text = guide.read_text("utf-8").replace("<address of mixlist>", "https://example.org/mixlist")
    guide.write_text(text.replace("<owner>", "example").replace("<commit of mixlist>", f"v{version}"), "utf-8")
    urls = '[project.urls]\nRepository = "https://example.org/mixlist"\n\n[project.scripts]'
    settings.write_text(settings.read_text("utf-8").replace("[project.scripts]", urls), "utf-8")
    git(clone, "commit", "-am", "Write the address")
    release.release(clone, "2026-12-01", checks=())
    output = capfd.readouterr().out
    assert f"git tag -a v{version}" in output
    assert f"twine upload dist/mixlist-{version}.tar.gz dist/mixlist-{version}-py3-none-any.whl" in output
    assert f"## {version} (2026-12-01)" in (clone / "CHANGELOG.md").read_text("utf-8")
