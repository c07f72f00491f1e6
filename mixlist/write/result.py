"""The result of rewriting a model: the new model, the way to save it, and the changes that were made."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic, warning
from mixlist.files.strict_json import JsonObject
from mixlist.model.load import LoadedModel
from mixlist.model.protos import tensors_in_model
from mixlist.model.save import SaveOptions, save_model, set_inline
from mixlist.model.weights import declared_byte_size, is_external, stored_type
from mixlist.progress import ProgressCallback, ProgressCounter
from mixlist.result_tables import notebook_facts
from mixlist.write.constant_conversion import find_constant_warnings
from mixlist.write.tensor_conversion import ConstantReport, external_tensor_key, stream_tensor

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from mixlist.lists.policy import Clamp

NOTHING_LOW = warning(
    "ML605",
    "no node is low: the mixed model is the original",
    hint="mixlist resolve shows the reason for each node, with the same options",
)


@dataclass(repr=False)
class RewriteResult:
    """The rewritten model and the changes.

    ``model`` is the new model, an ``onnx.ModelProto`` in memory. ``constants`` reports every converted constant.
    ``counts`` has the number of nodes by precision. ``low`` is the number of nodes in low precision, and ``eligible``
    the number of nodes in low precision or float32.

    Example::

        result = mixlist.rewrite("digits.onnx", mixlist.resolve("digits.onnx", mixlist.load_policy()))
        print(result.casts_inserted, result.low, "of", result.eligible)
        result.save("mixed.onnx")
    """

    loaded: LoadedModel
    proto: ModelProto = field(repr=False)
    casts_inserted: int
    counts: dict[str, int]
    low: int
    eligible: int
    _reports: dict[Hashable, ConstantReport]
    _clamp: Clamp
    # By the name of a converted constant: a node for which a zero is dangerous.
    _sensitive_readers: dict[str, str]
    _plan_warnings: tuple[Diagnostic, ...]
    _save_warnings: list[Diagnostic] = field(default_factory=list)

    def __repr__(self) -> str:
        counts = f"low {self.low} of {self.eligible}, Casts {self.casts_inserted}"
        return f"<RewriteResult of {self.loaded.name!r}: {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        nodes = [f"{precision}: {number}" for precision, number in self.counts.items()]
        facts = {"nodes by precision": nodes, "Casts inserted": str(self.casts_inserted)}
        return notebook_facts(f"mixed model of {self.loaded.name}", facts)

    @property
    def model(self) -> ModelProto:
        """Return the model with all weights in it.

        Weights in other files stay there if the model was passed in as an ``onnx.ModelProto``.
        """
        if self.loaded.folder is not None:
            for tensor in self._find_external_tensors(unconverted_only=False):
                set_inline(tensor, b"".join(self._stream(tensor)))
        return self.proto

    @property
    def constants(self) -> list[ConstantReport]:
        """Return a report per converted constant, in the order of the file.

        External data that is not converted yet has no report yet. Its report is made here, by a conversion whose
        result is not kept.
        """
        for tensor in self._find_external_tensors(unconverted_only=True):
            if external_tensor_key(tensor) not in self._reports:
                deque(self._stream(tensor), maxlen=0)  # runs the conversion and drops the bytes
        return list(self._reports.values())

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the warnings of the plan, of the conversion of constants, and of saving the model."""
        return (
            *self._plan_warnings,
            *find_constant_warnings(self.constants, self._sensitive_readers),
            *self._save_warnings,
        )

    def save(
        self,
        path: str | Path,
        *,
        force: bool = False,
        external_data: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> tuple[Path, ...]:
        """Write the model to ``path``, atomically. Another file is replaced only with ``force``, the input file never.

        Returns the files written: the model's and, if there is one, its data file.

        ``external_data``: ``auto``, ``yes`` or ``no`` as on the command line; ``progress`` gets a Progress that counts
        the bytes written.
        """
        options = SaveOptions(force, external_data, ProgressCounter(progress, "bytes"))
        written_paths, self._save_warnings = save_model(self.proto, Path(path), self.loaded, self._stream, options)
        return written_paths

    def streamed_bytes(self) -> int:
        """Return the number of bytes of external data that ``save`` writes."""
        return sum(declared_byte_size(tensor) for tensor in self._find_external_tensors(unconverted_only=False))

    def _stream(self, tensor: TensorProto) -> Iterator[bytes]:
        return stream_tensor(tensor, self.loaded.folder, self._clamp, self._reports)

    def _find_external_tensors(self, unconverted_only: bool) -> Iterator[TensorProto]:
        """Yield the tensors with external data; on request only those that are stored in another type."""
        for tensor in self._originally_external:
            if is_external(tensor) and (not unconverted_only or stored_type(tensor) != tensor.data_type):
                yield tensor

    @cached_property
    def _originally_external(self) -> list[TensorProto]:
        """Return the tensors with external data before ``model`` put them into the message."""
        # Kept for all calls, because ``constants`` still reports a tensor after ``model`` put it into the message.
        return [tensor for tensor in tensors_in_model(self.proto) if is_external(tensor)]

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.apply/1`` object of schemas/apply.json."""
        return {
            "format": "mixlist.apply/1",
            "casts_inserted": self.casts_inserted,
            "counts": self.counts,
            "constants": [asdict(constant) for constant in self.constants],
            "warnings": [str(warning) for warning in self.warnings],
        }
