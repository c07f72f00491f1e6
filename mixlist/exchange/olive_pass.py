"""A pass of Olive that writes an ONNX model in mixed precision, with lists, data and target from Olive's config.

Olive imports this module, and mixlist does not. A ``package_config`` names it (docs/guides/tools.md). Written for
olive-ai 0.13.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from olive.data.config import DataConfig
from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from mixlist.checker.result import CheckReport
from mixlist.checker.run import check
from mixlist.decide import resolve
from mixlist.errors import UsageError
from mixlist.lists.load import load_policy
from mixlist.lists.policy import PolicyOptions
from mixlist.option_fields import command_line_forms
from mixlist.search.tune import tune
from mixlist.targets.target_plan import plan_for_target
from mixlist.write import rewrite

_LISTS = command_line_forms(PolicyOptions)
# The target of each execution provider, if the config names no other.
_TARGETS = {
    "CPUExecutionProvider": "cpu",
    "CUDAExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "TensorrtExecutionProvider": "tensorrt",
    "NvTensorRTRTXExecutionProvider": "tensorrt",
    "WebGpuExecutionProvider": "webgpu",
}


class MixlistMixedPrecision(Pass):  # type: ignore[misc, unused-ignore]
    """Write a model in the precision that lists decide; with data, check or tune the lists first.

    The parameters are the options of lists in Python (``mixlist.load_policy``), ``io``, ``target``,
    ``data_config`` and ``tune``. The pass fails if the mixed model does not pass on the data.
    """

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:
        """Return False: the execution provider chooses the target."""
        return False

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        lists = {
            name: PassConfigParam(type_=str, default_value=form.default, description=form.description)
            for name, form in _LISTS.items()
        }
        target = _TARGETS.get(str(accelerator_spec.execution_provider))
        return lists | {
            "io": PassConfigParam(
                type_=str,
                default_value="keep",
                description="The type of float inputs and outputs: keep, float32 or low.",
            ),
            "target": PassConfigParam(
                type_=str,
                default_value=target,
                description="A target of mixlist: nodes for which it has no low-precision kernel stay as authored.",
            ),
            "data_config": PassConfigParam(
                type_=DataConfig | dict[str, Any] | None,
                default_value=None,
                description="Data on which the mixed model must keep the limits of 'mixlist check'.",
            ),
            "tune": PassConfigParam(
                type_=bool, default_value=False, description="Find the smallest change of the lists that keeps them."
            ),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        path = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        settings: dict[str, Any] = config.model_dump()
        with TemporaryDirectory() as folder:
            lists = {name: settings[name] for name in _LISTS}
            if settings["data_config"] is not None:
                lists = _judge_lists(model, lists, settings, Path(folder))
            plan = resolve(model.model_path, load_policy(**lists), io=settings["io"])
        if settings["target"] is not None:
            plan = plan_for_target(plan, settings["target"]).plan
        path.parent.mkdir(parents=True, exist_ok=True)
        written = rewrite(model.model_path, plan).save(path)
        if len(written) == 1:
            return ONNXModelHandler(model_path=str(path))
        return ONNXModelHandler(model_path=str(path.parent), onnx_file_name=path.name)


def _judge_lists(
    model: ONNXModelHandler, lists: dict[str, Any], settings: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Return the lists that keep the limits on the data: those of the config, or tuned ones written to ``folder``."""
    policy, batches = load_policy(**lists), list(_read_batches(model, settings["data_config"]))
    report = (tune if settings["tune"] else check)(model.model_path, policy, batches)
    if report.verdict != "pass":
        raise UsageError(
            f"{model.model_path}: {report.verdict} in mixed precision: {'; '.join(report.reasons)}",
            hint="'mixlist check' with the same lists and data shows where" if settings["tune"] else "set tune to true",
        )
    if isinstance(report, CheckReport):
        return lists
    report.save(folder / "modify.json")
    return lists | {"mixlist": str(folder / "modify.json")}


def _read_batches(model: ONNXModelHandler, data_config: DataConfig | dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the batches of Olive's data: dicts of arrays by input name."""
    config = data_config if isinstance(data_config, DataConfig) else DataConfig(**data_config)
    reader = config.to_data_container().create_calibration_dataloader(
        model_path=model.model_path, io_config=model.io_config
    )
    while (batch := reader.get_next()) is not None:
        yield batch
