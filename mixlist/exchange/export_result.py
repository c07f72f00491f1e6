"""The result of an export: the lists of one tool, and the decisions that the tool makes otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mixlist.diagnostics import Diagnostic
from mixlist.model.naming import NodeRef
from mixlist.result_tables import limited, notebook_facts


@dataclass(frozen=True, slots=True)
class ExportException:
    """One node that the tool treats otherwise than the plan. ``why`` says what the tool does, and what to do.

    ``invalid``: the tool makes an invalid model because of this node.

    Example::

        result = mixlist.export("digits.onnx", mixlist.load_policy(), "modelopt")
        print([(exception.node, exception.why) for exception in result.exceptions])
    """

    node: NodeRef
    why: str
    invalid: bool = False


@dataclass(frozen=True, repr=False)
class ExportResult:
    """The lists that make a tool decide as a plan does.

    ``lists``: the lists by the tool's own names, for example ``op_block_list``.
    ``arguments``: the other arguments that the tool needs, by the tool's own names.
    ``call``: a command or a Python program that runs the tool with both.
    ``exceptions``: what the lists cannot express, and what the tool decides by itself.
    ``notes``: differences that hold for the whole model.
    ``measured_with``: the version of the tool from which the exceptions were derived.
    ``files``: the text of each file that ``save`` writes, by name; empty for a tool that reads no files.

    Example::

        result = mixlist.export("digits.onnx", mixlist.load_policy(), "ort")
        print(result.lists, result.call)
    """

    tool: str
    measured_with: str
    model: str
    precision: str
    lists: Mapping[str, object]
    arguments: Mapping[str, object]
    call: str
    exceptions: tuple[ExportException, ...] = ()
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        lengths = [(name, len(entries)) for name, entries in self.lists.items() if isinstance(entries, list)]
        sizes = "".join(f"{name} {length}, " for name, length in lengths)
        return f"<ExportResult for {self.tool}: {sizes}exceptions {len(self.exceptions)}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        lists = {
            name: limited(list(map(str, entries))) for name, entries in self.lists.items() if isinstance(entries, list)
        }
        exceptions = limited([f"{item.node}: {item.why}" for item in self.exceptions])
        facts = {**lists, "call": self.call.splitlines(), "exceptions": exceptions, "notes": self.notes}
        return notebook_facts(f"export of {self.model} for {self.tool}", facts)

    @property
    def is_valid(self) -> bool:
        """Return whether the tool makes a valid model, as far as is known."""
        return not any(item.invalid for item in self.exceptions)

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.export/1`` object of schemas/export.json."""
        return {
            "format": "mixlist.export/1",
            "tool": self.tool,
            "measured_with": self.measured_with,
            "model": self.model,
            "precision": self.precision,
            **self.lists,
            # JSON has no infinity: results have it as a string.
            "arguments": {name: "inf" if value == float("inf") else value for name, value in self.arguments.items()},
            "exceptions": [
                {"node": str(item.node), "why": item.why, "invalid": item.invalid} for item in self.exceptions
            ],
            "notes": list(self.notes),
        }

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write ``files`` into a new folder, which appears with all files or not at all; return their paths.

        Raises UsageError if the tool reads no files or the folder holds something already, and FileError if the folder
        cannot be written.
        """
        from mixlist.errors import UsageError
        from mixlist.files.atomic_writes import write_new_folder

        if not self.files:
            raise UsageError(f"{self.tool} reads no files", hint="pass the lists as arguments, as `call` shows")
        return write_new_folder(Path(folder), {name: text.encode() for name, text in self.files.items()})
