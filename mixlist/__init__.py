"""mixlist: convert ONNX models to mixed precision, and find out why a converted model gives NaN or wrong results.

A policy holds the lists and options, a plan the precision of each node. Write a model, and check it on data::

    import mixlist

    policy = mixlist.load_policy()
    plan = mixlist.resolve("digits.onnx", policy)
    mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")
    batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
    report = mixlist.check("digits.onnx", policy, batches)
    print(report.verdict)

Begin with the functions below: ``convert``, ``load_policy``, ``resolve``, ``rewrite``, ``check``, ``tune``, ``repair``,
``bench``, ``train``, ``validate``, ``diff`` and ``export``. Each has an example: ``help(mixlist.check)``.

Importing mixlist is cheap. The modules of the public functions and classes, and packages such as onnx, are imported at
the first use of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixlist.version import __version__ as __version__

if TYPE_CHECKING:
    # ``import X as X`` marks a re-export: type checkers refuse to import other names of this module from outside.
    from mixlist.benchmark.result import BenchReport as BenchReport
    from mixlist.benchmark.run import bench as bench
    from mixlist.checker.limits import Limits as Limits
    from mixlist.checker.result import CheckReport as CheckReport
    from mixlist.checker.result import NodeError as NodeError
    from mixlist.checker.result import NodeFinding as NodeFinding
    from mixlist.checker.result import OutputFinding as OutputFinding
    from mixlist.checker.result import TensorRange as TensorRange
    from mixlist.checker.run import check as check
    from mixlist.comparison import DiffReport as DiffReport
    from mixlist.comparison import NodeChange as NodeChange
    from mixlist.comparison import SideResult as SideResult
    from mixlist.comparison import diff as diff
    from mixlist.decide import Decision as Decision
    from mixlist.decide import resolve as resolve
    from mixlist.decide.plan import Plan as Plan
    from mixlist.diagnostics import Diagnostic as Diagnostic
    from mixlist.errors import MixlistError as MixlistError
    from mixlist.exchange.export import export as export
    from mixlist.exchange.export_result import ExportException as ExportException
    from mixlist.exchange.export_result import ExportResult as ExportResult
    from mixlist.lists.diff import ListDiff as ListDiff
    from mixlist.lists.diff import SettingChange as SettingChange
    from mixlist.lists.load import load_policy as load_policy
    from mixlist.lists.policy import Policy as Policy
    from mixlist.lists.validate_file import FileReport as FileReport
    from mixlist.progress import Progress as Progress
    from mixlist.run.feeds import Batches as Batches
    from mixlist.run.feeds import Data as Data
    from mixlist.run.feeds import random_batches as random_batches
    from mixlist.run.feeds import read_data as read_data
    from mixlist.search.convert import convert as convert
    from mixlist.search.convert_result import ConvertReport as ConvertReport
    from mixlist.search.convert_result import ConvertResult as ConvertResult
    from mixlist.search.convert_result import ConvertTrial as ConvertTrial
    from mixlist.search.convert_result import HighNode as HighNode
    from mixlist.search.convert_result import ModelSize as ModelSize
    from mixlist.search.repair import repair as repair
    from mixlist.search.repair_result import OutputErrors as OutputErrors
    from mixlist.search.repair_result import RaisedNode as RaisedNode
    from mixlist.search.repair_result import RepairEdit as RepairEdit
    from mixlist.search.repair_result import RepairReport as RepairReport
    from mixlist.search.tune import tune as tune
    from mixlist.search.tune_result import TunedEdit as TunedEdit
    from mixlist.search.tune_result import TuneReport as TuneReport
    from mixlist.show.result_page import html as html
    from mixlist.targets.model_check import MissingOperator as MissingOperator
    from mixlist.targets.model_check import ModelCheck as ModelCheck
    from mixlist.targets.target_plan import LowNode as LowNode
    from mixlist.targets.target_plan import TargetPlan as TargetPlan
    from mixlist.targets.target_plan import plan_for_target as plan_for_target
    from mixlist.training.result import TrainReport as TrainReport
    from mixlist.training.run import train as train
    from mixlist.validation import validate as validate
    from mixlist.write import ConstantReport as ConstantReport
    from mixlist.write import RewriteResult as RewriteResult
    from mixlist.write import rewrite as rewrite

# The module that defines each public name. Keep it equal to the imports above, which only type checkers read.
_MODULE_OF = {
    "Batches": "mixlist.run.feeds",
    "BenchReport": "mixlist.benchmark.result",
    "CheckReport": "mixlist.checker.result",
    "ConstantReport": "mixlist.write",
    "ConvertReport": "mixlist.search.convert_result",
    "ConvertResult": "mixlist.search.convert_result",
    "ConvertTrial": "mixlist.search.convert_result",
    "Data": "mixlist.run.feeds",
    "Decision": "mixlist.decide",
    "Diagnostic": "mixlist.diagnostics",
    "DiffReport": "mixlist.comparison",
    "ExportException": "mixlist.exchange.export_result",
    "ExportResult": "mixlist.exchange.export_result",
    "FileReport": "mixlist.lists.validate_file",
    "HighNode": "mixlist.search.convert_result",
    "Limits": "mixlist.checker.limits",
    "ListDiff": "mixlist.lists.diff",
    "LowNode": "mixlist.targets.target_plan",
    "MissingOperator": "mixlist.targets.model_check",
    "MixlistError": "mixlist.errors",
    "ModelCheck": "mixlist.targets.model_check",
    "ModelSize": "mixlist.search.convert_result",
    "NodeChange": "mixlist.comparison",
    "NodeError": "mixlist.checker.result",
    "NodeFinding": "mixlist.checker.result",
    "OutputErrors": "mixlist.search.repair_result",
    "OutputFinding": "mixlist.checker.result",
    "Plan": "mixlist.decide.plan",
    "Policy": "mixlist.lists.policy",
    "Progress": "mixlist.progress",
    "RaisedNode": "mixlist.search.repair_result",
    "RepairEdit": "mixlist.search.repair_result",
    "RepairReport": "mixlist.search.repair_result",
    "RewriteResult": "mixlist.write",
    "SettingChange": "mixlist.lists.diff",
    "SideResult": "mixlist.comparison",
    "TargetPlan": "mixlist.targets.target_plan",
    "TensorRange": "mixlist.checker.result",
    "TrainReport": "mixlist.training.result",
    "TuneReport": "mixlist.search.tune_result",
    "TunedEdit": "mixlist.search.tune_result",
    "bench": "mixlist.benchmark.run",
    "check": "mixlist.checker.run",
    "convert": "mixlist.search.convert",
    "diff": "mixlist.comparison",
    "export": "mixlist.exchange.export",
    "html": "mixlist.show.result_page",
    "load_policy": "mixlist.lists.load",
    "plan_for_target": "mixlist.targets.target_plan",
    "random_batches": "mixlist.run.feeds",
    "read_data": "mixlist.run.feeds",
    "repair": "mixlist.search.repair",
    "resolve": "mixlist.decide",
    "rewrite": "mixlist.write",
    "train": "mixlist.training.run",
    "tune": "mixlist.search.tune",
    "validate": "mixlist.validation",
}

__all__ = [*sorted(_MODULE_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mixlist' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_MODULE_OF[name])
    value = getattr(module, name)
    # Python calls __getattr__ only for names that the module lacks, so the next use of this name is direct.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
