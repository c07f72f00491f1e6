#!/usr/bin/env python3
"""Compare `mixlist check` natively on a GPU with its emulation on the CPU: on planted graphs and the corpus.

    python benchmarks/gpu_check.py FOLDER [--out FILE] [--budget SECONDS] [--jobs N] [--only WORD]

FOLDER holds the corpus (``python tests/corpus/fetch.py FOLDER``); models that are missing are left out. Each model is
checked on its own batches under the ``onnx`` and the ``ascend910b`` lists in float16, then under ``onnx`` in bfloat16.
For each model the script prints one line (verdict, first offenders, exception rate and the worst normalized error of
the outputs, natively and emulated), then each node whose findings differ. It appends each result to FILE at once, a
line of JSON for each task.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu_tasks import card, require_provider, run_all  # noqa: E402

SETTINGS = (("onnx", "mixed_float16"), ("ascend910b", "mixed_float16"), ("onnx", "mixed_bfloat16"))
SHOWN = 12  # differing nodes printed of one model; FILE has all


def main() -> None:
    """Run every task and print the comparison."""
    from tests.support.planted_models import PLANTED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.jsonl"))
    parser.add_argument("--budget", type=float, default=480)
    parser.add_argument("--limit", type=float, default=150, help="seconds for one task")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", default="", help="run only the tasks whose words contain this text")
    parser.add_argument("--provider", default="cuda", help="cpu: try the script without a GPU")
    options = parser.parse_args()
    require_provider(options.provider)
    corpus = sorted(path.stem for path in options.folder.glob("*.onnx"))
    tasks = [("planted", options.provider, str(len(PLANTED)))]
    tasks += [(name, options.provider, str(options.folder), *setting) for setting in SETTINGS for name in corpus]
    print(f"{card()}; a budget of {options.budget:.0f} s", flush=True)
    selected = [task for task in tasks if options.only in " ".join(task)]
    run_all(__file__, selected, options.out, format_result, options.budget, options.jobs, options.limit)


# --- one task, in a process of its own ---


def run_task(name: str, provider: str, *arguments: str) -> Any:
    """Return the result of one task: the planted graphs, or a model of the corpus under a setting."""
    return planted(provider) if name == "planted" else model(name, provider, *arguments)


def planted(provider: str) -> dict[str, Any]:
    """Check every planted graph natively and emulated; return those that differ from the result written by hand."""
    import mixlist
    from tests.support.builders import model as graph
    from tests.support.planted_models import PLANTED

    wrong = []
    for case in PLANTED:
        kinds = {}
        for device in (provider, "cpu"):
            try:
                report = mixlist.check(graph(case.text), case.policy, case.feeds, provider=device)
                kinds[device] = {_name(n): n.kind for n in report.nodes}
            except Exception as error:  # a graph that fails must not hide the others
                kinds[device] = {"": f"{type(error).__name__}: {error}"}
        if any(node_kinds != case.kinds for node_kinds in kinds.values()):
            wrong.append(
                {"graph": case.name, "by hand": case.kinds, "native": kinds[provider], "emulated": kinds["cpu"]}
            )
    return {"name": "planted", "graphs": len(PLANTED), "wrong": wrong}


def model(name: str, provider: str, folder: str, lists: str, mode: str) -> dict[str, Any]:
    """Check one model of the corpus natively and emulated; return both summaries and the nodes that differ."""
    import mixlist
    from mixlist.targets.target import load_target
    from mixlist.targets.target_plan import find_low_nodes
    from tests.corpus.feeds import feeds

    path = Path(folder, f"{name}.onnx")
    policy = mixlist.load_policy(ops_info=lists, precision_mode_v2=mode)
    summaries, findings = {}, {}
    for run, device in (("native", provider), ("emulated", "cpu")):
        start = time.monotonic()
        report = mixlist.check(path, policy, feeds(name), provider=device)
        summaries[run] = {**_summary(report), "seconds": round(time.monotonic() - start, 1)}
        findings[run] = {_name(n): n for n in report.nodes if n.kind != "internal-risk"}
    plan = mixlist.resolve(path, policy)
    low_nodes = find_low_nodes(plan, load_target("cuda"))
    without_kernel = {f"{n.decision.scope}/{n.decision.name}".lstrip("/") for n in low_nodes if not n.has_kernel}
    low = [d for d in plan.nodes if d.precision == policy.mode.low]
    differing = [
        {
            "node": node,
            "no low kernel": node in without_kernel,
            **{run: _finding(findings[run].get(node)) for run in findings},
        }
        for node in dict.fromkeys([*findings["native"], *findings["emulated"]])
        if _kind(findings["native"].get(node)) != _kind(findings["emulated"].get(node))
    ]
    kernels = {"low": len(low), "without": len(without_kernel)}
    return {"name": name, "lists": lists, "mode": mode, **summaries, "kernels": kernels, "differing": differing}


def _summary(report: Any) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "mode": report.mode,
        "rate": report.exception_rate,
        "first": [_name(n) for n in report.nodes if n.first],
        "worst": _plain(max((o.normalized_error for o in report.outputs), default=0.0)),
        "outputs": {o.name: [_plain(o.normalized_error), _plain(o.max_abs_error)] for o in report.outputs},
        "reasons": list(report.reasons),
        "warnings": [str(found) for found in report.warnings],
    }


def _name(finding: Any) -> str:
    return f"{finding.scope}/{finding.name}".lstrip("/")


def _kind(finding: Any) -> str:
    return "" if finding is None else finding.kind


def _finding(finding: Any) -> dict[str, Any] | None:
    if finding is None:
        return None
    ranges = {"float32": _plain(finding.max_abs_fp32), "low": _plain(finding.max_abs_low)}
    return {"op": finding.op_type, "kind": finding.kind, "batches": list(finding.batches), **ranges}


def _plain(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


# --- the printed lines ---


def format_result(result: Any) -> str:
    """Return the lines of one result."""
    if result["name"] == "planted":
        right = result["graphs"] - len(result["wrong"])
        lines = [f"planted: {right} of {result['graphs']} graphs as written by hand"]
        return "\n".join([*lines, *(f"  {json.dumps(graph)}" for graph in result["wrong"])])
    head = f"{result['name']} {result['lists']} {result['mode']}"
    summaries = "; ".join(_format_summary(run, result[run]) for run in ("native", "emulated"))
    lines = [f"{head}: {summaries}; {_agreement(result)}"]
    differing = result["differing"]
    lines += [f"  {json.dumps(node)}" for node in differing[:SHOWN]]
    lines += [f"  and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
    return "\n".join(lines)


def _format_summary(run: str, summary: Any) -> str:
    first = ", ".join(summary["first"][:3]) + (", ..." if len(summary["first"]) > 3 else "")
    errors = f"worst normalized error {_short(summary['worst'])}"
    return f"{run} {summary['verdict']}, {len(summary['first'])} first ({first}), rate {summary['rate']:.0%}, {errors}"


def _short(number: float | str) -> str:
    return number if isinstance(number, str) else f"{number:.2e}"


def _agreement(result: Any) -> str:
    same = result["native"]["verdict"] == result["emulated"]["verdict"]
    offenders = set(result["native"]["first"]) == set(result["emulated"]["first"])
    kernels = f"{result['kernels']['without']} of {result['kernels']['low']} low nodes have no kernel"
    words = f"verdicts {'agree' if same else 'DIFFER'}, first offenders {'agree' if offenders else 'DIFFER'}"
    return f"{words}, {len(result['differing'])} nodes differ; {kernels}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(run_task(*sys.argv[2:])))
    else:
        main()
