"""Detect the kind of a list file by its content, and find the list files in a folder and its subfolders.

A folder holds other files too, so a file is a list file only if it shows that it is one. JSON files show it by their
keys, node rule files by a rule with ``OpType::`` or ``InputDtype:`` or by their name. A JSON file that cannot be read
counts as a list file: a damaged list must not be left out. A text file with nothing but what can be names of nodes is
probably a keep_dtype file, so it counts as one, as a guess that must be reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, ListError, raise_for_errors
from mixlist.files.jsonc import Document, parse
from mixlist.files.list_text import read_text, shown_path
from mixlist.lists.op_catalog import is_known
from mixlist.option_spelling import spell

# --- the kind of a file ---

JsonKind = Literal["modify-mixlist", "ops-info"]
TextKind = Literal["keep-dtype", "customize-dtypes"]
FileKind = Literal[JsonKind, TextKind]

LIST_KEYS = ("black-list", "white-list", "gray-list")  # of a modify_mixlist, in canonical order (Rule S2.8)
ACTION_KEYS = ("to-add", "to-remove")  # of each list

# Blanks around a node rule and its parts. Files that were joined can have byte-order marks in the middle. All other
# white space belongs to the name of a node.
BLANKS = " \t\r\ufeff"

# The start of a JSON file: blanks and comments, then a bracket or a quote, with which no name of a node starts. Lines
# with # are skipped too: a JSON file that has them, by mistake, must not be read as node rules.
_JSON_START = re.compile(r"(?:[ \t\r\n\ufeff]++|//[^\r\n]*+|#[^\n]*+|/\*(?s:.*?)\*/)*+[{\[\"]")
_LIST_KEY = re.compile(r"(black|white|gr[ae]y)[-_ ]?lists?$", re.IGNORECASE)  # misspelled ones too
_ENTRY_KEYS = ("precision_reduce", "input0", "output0", "attr", "opFile", "opInterface")  # of an op type in a library


def detect_text_kind(text: str, path: str) -> TextKind | None:
    """Return the kind of a node rule file; None for a JSON file, also an invalid one.

    A file is JSON if its name ends with ``.json``, if it starts like JSON, or if it holds only blanks. Another file
    without any byte holds no node rule: ``tune`` writes such a file if no node needs a rule. Raises ListError for a
    configuration in INI form, with the list files that it names.
    """
    if path.lower().endswith(".json"):
        return None
    _refuse_configuration(text, path)
    if not text:
        return "customize-dtypes"
    if not text.strip(BLANKS + "\n") or _JSON_START.match(text):
        return None
    # Every valid rule of customize_dtypes has ``InputDtype:``. ``OutputDtype:`` alone is an error of such a rule.
    return "customize-dtypes" if "InputDtype:" in text or "OutputDtype:" in text else "keep-dtype"


# A configuration in INI form: sections and settings. The keys of the engine end with the name of the option of atc.
_SECTION = re.compile(r"\[\s*(\w+)\s*\]$")
_SETTING = re.compile(r"([^=\[\]\s]+)\s*=\s*(.*)$")
_LIST_FILE_KEY = re.compile(r"(?:.*\.)?(modify_mixlist|keep_dtype|customize_?dtypes)$", re.IGNORECASE)
_KNOWN_SECTIONS = {
    **dict.fromkeys(("acl_build_options", "acl_init_options", "ascend_context"), "a configuration of MindSpore Lite"),
    **dict.fromkeys(("ByOpType", "ByNodeName"), "an op_precision_mode file"),
}
# The values of ``--op_precision_mode`` in the documents of atc, CANN 9.1.
_OP_PRECISION_MODE = re.compile(
    "high_precision|high_performance|super_performance|keep_fp16|support_out_of_bound_index|enable_(hi_)?float_32_execution"
)


def _refuse_configuration(text: str, path: str) -> None:
    """Raise ListError (ML016) if every line is a section, a setting or a comment, and the file has a known sign.

    The signs are a section, and the values of an op_precision_mode file, which needs no section.
    """
    sections: dict[str, int] = {}  # by name, the first line
    list_files: list[tuple[int, str, str]] = []  # the line, the key and the value of each setting that names one
    first_line, has_modes_only = 0, True
    for number, match in enumerate(re.finditer(r"[^\n]*\n?", text), 1):
        line = match[0].strip(BLANKS + "\n")
        if not line or line[0] in "#;":
            continue
        section, setting = _SECTION.match(line), _SETTING.match(line)
        if section:
            sections.setdefault(section[1], number)
        elif setting:
            key, value = setting[1], setting[2].strip("\"' ")
            first_line = first_line or number
            has_modes_only = has_modes_only and bool(_OP_PRECISION_MODE.fullmatch(value))
            if _LIST_FILE_KEY.match(key):
                list_files.append((number, key, value))
        else:
            return
    if not first_line or not (sections or has_modes_only):
        return
    what = "an op_precision_mode file" if has_modes_only else "a configuration in INI form"
    what = next((_KNOWN_SECTIONS[name] for name in sections if name in _KNOWN_SECTIONS), what)
    message = f"the file is {what}, not a list file"
    number = min(first_line, *sections.values()) if sections else first_line
    if list_files:
        message += f": {', '.join(key for _, key, _ in list_files)} names one"
        number, hint = list_files[0][0], f"check {', '.join(value for _, _, value in list_files)}"
    elif what == "an op_precision_mode file":
        hint = "it chooses how operators compute inside, and no option of mixlist reads it"
    else:
        message, hint = f"{message}, and no key names one", "give the path of a list file"
    raise_for_errors([Diagnostic("ML016", "error", message, path, number, 1, hint)])


def detect_json_kind(document: Document) -> JsonKind:
    """Return the kind of a JSON list file; raise ListError if its content is not typical of any kind."""
    kind = guess_json_kind(document.value)
    if kind is None:
        is_object = isinstance(document.value, dict)
        reason = "no key is typical of either kind" if is_object else "it holds no JSON object"
        hint = f"correct its keys, or give its kind with {spell('kind')}"
        if other_format := _find_other_format(document.value):
            reason, hint = f"its format is {other_format}", "this is a report of mixlist: give a list file"
            if other_format.startswith("urn:"):
                reason, hint = "it is a JSON schema of mixlist", "give a list file, and exclude the folder of schemas"
            if other_format.startswith("mixlist.target/"):
                hint = f"this is the table of a target: give it to {spell('target')}"
        message = f"the file is neither a modify_mixlist nor an operator information library: {reason}"
        finding = document.finding("ML010", "error", message, hint=hint)
        raise_for_errors([*document.findings, finding])
    assert kind is not None  # raise_for_errors has raised the finding above
    return kind


def guess_json_kind(value: object) -> JsonKind | None:
    """Return the most probable kind of a JSON value; None if there is no sign of a kind.

    Without typical keys, an object whose values are objects is a library: its keys can be the names of op types.
    """
    if not isinstance(value, dict) or _find_other_format(value):
        return None
    # {} is a modify_mixlist without edits (Rule S2.1). With "$schema" alone, its check explains that key (ML103).
    if not value.keys() - {"$schema"}:
        return "modify-mixlist"
    has_objects = any(isinstance(member, dict) for member in value.values())
    return find_evident_kind(value) or ("ops-info" if has_objects else None)


def _find_other_format(value: object) -> str:
    """Return the format of a JSON file that mixlist writes or reads and that is no list file; "" for any other."""
    names = (value.get("format"), value.get("$id")) if isinstance(value, dict) else ()
    return next((n for n in names if isinstance(n, str) and n.startswith(("mixlist.", "urn:mixlist:schema:"))), "")


def find_evident_kind(value: object) -> JsonKind | None:
    """Return the kind that a typical key of a JSON value shows; None if the value has no typical key.

    A key word of a modify_mixlist shows one at the top and in the objects there, also where the two levels are swapped:
    ``{"to-add": {"black-list": []}}`` (Rule S2.1).
    """
    if not isinstance(value, dict):
        return None
    objects = [member for member in value.values() if isinstance(member, dict)]
    keys = value.keys() | {key for member in objects for key in member}
    if any(map(_LIST_KEY.match, value)) or not keys.isdisjoint((*LIST_KEYS, *ACTION_KEYS)):
        return "modify-mixlist"
    return "ops-info" if any(key in member for member in objects for key in _ENTRY_KEYS) else None


# --- the list files of a folder ---

_RULE_SUFFIXES = (".txt", ".cfg", ".conf", ".ini")
_RULE = re.compile(r"^[ \t]*OpType::|::?(Input|Output)Dtype:", re.MULTILINE)
_RULE_FILE_NAME = re.compile(r"(?P<keep>keep)[-_ ]?dtype|customi[sz]e[-_ ]?dtype", re.IGNORECASE)

# A line that can be the name of a node: one word. Settings (``a=b``), sections (``[a]``), addresses and names of files
# (``images/1.png``) are no names of nodes.
_NODE_NAME = re.compile(r"(?!\[)(?!.*://)(?!.*\.[A-Za-z]\w{1,4}$)[^\s=]+")
# A name as exporters make it, with a slash or with a number at its end. Words alone can be anything.
_EXPORTED_NAME = re.compile(r"/|[A-Za-z_]\.?\d+$")
_COMMENT = re.compile(r"(^|[ \t])#.*")

# "auto": JSON that cannot be read. "objects": an object of objects, a library only if the folder has another one.
# "names": a text file whose lines can all be names of nodes.
_Sign = FileKind | Literal["auto", "objects", "names"]


class ListFile(NamedTuple):
    """A list file in a folder, or a library of several files: then ``path`` is the folder and ``members`` its files.

    ``kind`` is ``auto`` for a file that cannot be read. ``is_guess``: the file does not prove that it is a list file.
    """

    path: str
    kind: Literal["auto"] | FileKind
    members: tuple[str, ...] = ()
    is_guess: bool = False


def find_list_files(
    folder: str | os.PathLike[str], kind: Literal["auto"] | FileKind = "auto"
) -> tuple[list[ListFile], list[str]]:
    """Return the list files in a folder and its subfolders. Hidden files and folders, and linked folders, are left out.

    With a ``kind``, every file with an ending of this kind is such a list file: ``.json``, or those of text files.
    The second result has the paths of the JSON and text files there that do not show that they are list files.
    Raises FileError if a folder cannot be read, or if there is no list file.
    """
    list_files: list[ListFile] = []
    other_files: list[str] = []
    for directory, subfolders, names in os.walk(folder, onerror=_raise_unreadable):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        paths = [Path(directory, name) for name in sorted(names) if not name.startswith(".")]
        paths = [path for path in paths if path.suffix.lower() in (".json", *_RULE_SUFFIXES)]
        signs = {os.fspath(path): _find_sign(path, kind) for path in paths}
        folder_files = list(_list_files_of(directory, signs))
        listed = {member for file in folder_files for member in (file.path, *file.members)}
        list_files += folder_files
        other_files += [path for path in signs if path not in listed]
    if not list_files:
        raise FileError(
            f"{shown_path(folder)}: the folder holds no list file",
            hint=f"name a file, or say with {spell('kind', 'ops-info')} that the .json files of the folder are one"
            " library",
        )
    return list_files, other_files


def _raise_unreadable(error: OSError) -> None:
    raise FileError(f"{shown_path(error.filename)}: cannot be read: {error.strerror}") from None


def _list_files_of(directory: str, signs: dict[str, _Sign | None]) -> Iterator[ListFile]:
    """Yield the list files directly in a folder: first its library (Rule S1.3), then each other file."""
    has_library = "ops-info" in signs.values()
    in_library = ("ops-info", "objects", "auto") if has_library else ()
    if members := tuple(path for path, sign in signs.items() if sign in in_library):
        yield ListFile(directory, "ops-info", members)
    for path, sign in signs.items():
        if sign == "names":
            yield ListFile(path, "keep-dtype", is_guess=True)
        elif sign is not None and sign != "objects" and sign not in in_library:
            yield ListFile(path, sign)


def _find_sign(path: Path, kind: Literal["auto"] | FileKind) -> _Sign | None:
    """Return the kind that a file shows, or ``kind`` if it is given; None if the file does not show that it is a list.

    A file whose ending does not belong to the given kind is none.
    """
    is_json = path.suffix.lower() == ".json"
    if kind != "auto":
        return kind if is_json == (kind in get_args(JsonKind)) else None
    try:
        text = read_text(path)
        return _find_json_sign(parse(text, "").value) if is_json else _find_rule_sign(text, path.name)
    except ListError:
        return "auto" if is_json else None
    except FileError:
        # A file that is too large is another one, such as the vocabulary of a model. A file that must not be read is
        # reported when it is validated.
        return None if os.access(path, os.R_OK) or not is_json else "auto"


def _find_json_sign(value: object) -> _Sign | None:
    if not isinstance(value, dict) or _find_other_format(value):
        return None
    if not value:
        return "modify-mixlist"  # {} is one without edits (Rule S2.1)
    if kind := find_evident_kind(value):
        return kind
    if not all(isinstance(member, dict) for member in value.values()):
        return None
    return "ops-info" if any(is_known(op, "onnx") or is_known(op, "ascend") for op in value) else "objects"


def _find_rule_sign(text: str, name: str) -> FileKind | Literal["names"] | None:
    if match := _RULE_FILE_NAME.search(name):
        return "keep-dtype" if match["keep"] else "customize-dtypes"
    kind = detect_text_kind(text, name)
    if kind is None or _RULE.search(text):
        return kind
    lines = (_COMMENT.sub("", line.strip(BLANKS)).strip(BLANKS) for line in text.split("\n"))
    names = [line for line in lines if line]
    has_exported_name = any(map(_EXPORTED_NAME.search, names))
    return "names" if has_exported_name and all(map(_NODE_NAME.fullmatch, names)) else None
