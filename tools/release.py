"""Check, build and describe a release, and print the commands that publish it: make release

The version is the one in ``mixlist/version.py``, and the tag is ``v`` and the version. The section of that version in
``CHANGELOG.md`` gets the date of today in place of ``unreleased``. Nothing is committed, tagged or uploaded: the
printed commands do that. If a step fails, ``CHANGELOG.md`` is as before.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKS = ("check", "docs")  # targets of the Makefile. `make campaign` takes hours: CONTRIBUTING.md says when to run it.


def read_version(root: Path) -> str:
    """Return the version in ``mixlist/version.py``."""
    match = re.search(r'^__version__ = "([^"]+)"$', (root / "mixlist/version.py").read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit('mixlist/version.py: no line __version__ = "..."')
    return match[1]


def date_section(changelog: str, version: str, date: str) -> str:
    """Return the text of the changelog with ``date`` in the heading of the version's section.

    The newest section must be this version, marked ``(unreleased)``, with at least one line.
    """
    heading = re.search(r"^## (\S+) \((.+)\)\n+(- )?", changelog, re.MULTILINE)
    if heading is None or heading[1] != version or heading[2] != "unreleased":
        found = f"'{heading[0].splitlines()[0]}'" if heading else "no section"
        raise SystemExit(f"CHANGELOG.md: the newest section must be '## {version} (unreleased)', and is {found}")
    if heading[3] is None:
        raise SystemExit(f"CHANGELOG.md: the section of {version} has no lines: write what users notice")
    start, end = heading.span(2)
    return changelog[:start] + date + changelog[end:]


def find_placeholders(root: Path) -> list[str]:
    """Return a sentence for each thing that needs the address of the repository, before the first upload."""
    sentences = []
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    if "urls" not in project:
        sentences.append(
            "pyproject.toml: write the address of the repository into [project.urls]; then the links of README.md "
            "must begin with https://, because a package index shows no relative ones"
        )
    guide = root / "docs/guides/ci.md"
    names = sorted(set(re.findall(r"<[a-z]+ of mixlist>|<owner>", guide.read_text("utf-8"))))
    if names:
        sentences.append(f"docs/guides/ci.md: replace {', '.join(names)} by the address and the tag")
    return sentences


def publish_commands(version: str, files: list[str]) -> list[str]:
    """Return the commands that publish the built files, in order."""
    return [
        f"git commit -m 'Release {version}' CHANGELOG.md",
        f"git tag -a v{version} -m 'mixlist {version}'",
        f"git push origin HEAD v{version}",
        f".venv/bin/python -m twine upload {' '.join(files)}",
    ]


def call(root: Path, *command: str | Path) -> str:
    """Run a command in ``root`` and return its standard output; a failure ends the release."""
    print(f"$ {' '.join(map(str, command))}", flush=True)
    completed = subprocess.run([str(part) for part in command], cwd=root, stdout=subprocess.PIPE, text=True)
    if completed.returncode != 0:
        sys.stdout.write(completed.stdout)
        raise SystemExit(f"no release: {command[0]} ended with {completed.returncode}")
    return completed.stdout


def build_files(root: Path, version: str) -> list[str]:
    """Build the sdist and the wheel into ``dist``, check them, and run the wheel in a new environment."""
    dist = root / "dist"
    files = [f"dist/mixlist-{version}.tar.gz", f"dist/mixlist-{version}-py3-none-any.whl"]
    for old in dist.glob("mixlist-*"):
        old.unlink()
    call(root, sys.executable, "-m", "build", "--outdir", dist)
    call(root, sys.executable, "-m", "twine", "check", "--strict", *files)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        scripts = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        call(
            root, scripts / "python", "-m", "pip", "install", "--quiet", f"mixlist[cpu] @ {(root / files[1]).as_uri()}"
        )
        # The working directory is outside the checkout, so that Python imports the installed package.
        printed = call(Path(folder), scripts / "mixlist", "--version")
        if version not in printed.split():
            raise SystemExit(f"no release: the installed mixlist calls itself {printed.strip()}, not {version}")
        call(Path(folder), scripts / "mixlist", "demo")
    return files


def release(root: Path, date: str, checks: tuple[str, ...] = CHECKS) -> None:
    """Check and build the version of the checkout in ``root``, and print how to publish it."""
    version = read_version(root)
    changes = call(root, "git", "status", "--porcelain")
    if changes:
        raise SystemExit(f"no release: these files have changes that no commit has:\n{changes.rstrip()}")
    if call(root, "git", "tag", "--list", f"v{version}"):
        raise SystemExit(f"no release: the tag v{version} exists: set the next version in mixlist/version.py")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text("utf-8")
    dated = date_section(text, version, date)
    for target in checks:
        call(root, "make", target)
    changelog.write_text(dated, "utf-8")  # before the build: the sdist contains it
    is_ready = False
    try:
        files = build_files(root, version)
        placeholders = find_placeholders(root)
        is_ready = not placeholders
    finally:
        if not is_ready:
            changelog.write_text(text, "utf-8")
    print(f"\nmixlist {version} is built and checked: {' '.join(files)}")
    if placeholders:
        lines = "\n".join(f"- {sentence}" for sentence in placeholders)
        raise SystemExit(f"no release yet. Commit these changes, then run 'make release' again:\n{lines}")
    print("These commands publish it:")
    print("\n".join(f"  {command}" for command in publish_commands(version, files)))


if __name__ == "__main__":
    release(ROOT, datetime.datetime.now(datetime.UTC).date().isoformat())
