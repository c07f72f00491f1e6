"""Write the two list files of a result: a modify_mixlist and a customize_dtypes file."""

from __future__ import annotations

import os
from pathlib import Path

from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically


def default_rules_path(path: str | os.PathLike[str]) -> str:
    """Return the file for node rules beside a modify_mixlist file: ``modify.rules.txt`` for ``modify.json``."""
    return str(Path(path).with_suffix(".rules.txt"))


def save_list_files(
    path: str | os.PathLike[str],
    modify_mixlist: str,
    node_rules: str | os.PathLike[str] | None,
    customize_dtypes: str,
    *,
    has_node_rules: bool,
    force: bool,
) -> None:
    """Write the text ``modify_mixlist`` to ``path``, and the text ``customize_dtypes`` to ``node_rules``, if given.

    ``has_node_rules``: whether the result is not complete without the second file. Raises FileError if a file exists
    (unless ``force``) or cannot be written, and UsageError if both paths mean one file, or if the second file is needed
    and ``node_rules`` is None.
    """
    if node_rules is None and has_node_rules:
        raise UsageError("the result has node rules, and no file was named for them", hint="pass node_rules")
    if node_rules is not None and os.path.realpath(path) == os.path.realpath(node_rules):
        raise UsageError(f"{os.fspath(path)} would hold both the lists and the node rules", hint="give two files")
    # The rules come first: if their file cannot be written, there is no list without its rules.
    texts = {} if node_rules is None else {os.fspath(node_rules): customize_dtypes}
    texts[os.fspath(path)] = modify_mixlist
    for name in texts:
        if not force and Path(name).exists():
            raise FileError(f"{name} exists", hint="remove it, or replace it with --force")
    for name, text in texts.items():
        write_atomically(name, text.encode())
