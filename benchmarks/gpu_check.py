#!/usr/bin/env python3
"""Whether `mixlist check` says the same natively on a GPU as emulated on the CPU: planted graphs and the corpus.

    python benchmarks/gpu_check.py FOLDER [--out FILE] [--budget SECONDS] [--jobs N] [--only WORD]

FOLDER holds the corpus (``python tests/corpus/fetch.py FOLDER``); models that are not there are left out. Each model is
checked on its own batches under the ``onnx`` and the ``ascend910b`` lists in float16, then under ``onnx`` in bfloat16.
A line a model: verdict, first offenders, exception rate and the outputs' worst normalised error, natively and emulated;
then each node of which the two say different things. FILE gets everything as JSON, a line a task, as it comes.
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

from gpu_tasks import card, run_all  # noqa: E402

SETTINGS = (("onnx", "mixed_float16"), ("ascend910b", "mixed_float16"), ("onnx", "mixed_bfloat16"))
SHOWN = 12  # disagreements told of one model; FILE has all


def main() -> None:
    """Run every task; see the module."""
    from tests.support.planted_models import PLANTED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.jsonl"))
    parser.add_argument("--budget", type=float, default=480)
    parser.add_argument("--limit", type=float, default=150, help="seconds for one task")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", default="", help="tasks whose name holds this word")
    parser.add_argument("--provider", default="cuda", help="cpu tries the script where there is no GPU")
    given = parser.parse_args()
    corpus = sorted(path.stem for path in given.folder.glob("*.onnx"))
    tasks = [("planted", given.provider, str(len(PLANTED)))]
    tasks += [(name, given.provider, str(given.folder), *setting) for setting in SETTINGS for name in corpus]
    print(f"{card()}; a budget of {given.budget:.0f} s", flush=True)
    chosen = [task for task in tasks if given.only in " ".join(task)]
    run_all(__file__, chosen, given.out, tell, given.budget, given.jobs, given.limit)


# --- one task, in a process of its own ---


def one(name: str, provider: str, *rest: str) -> Any:
    """The result of one task: the planted graphs, or a model of the corpus under a setting."""
    return planted(provider) if name == "planted" else model(name, provider, *rest)


def planted(provider: str) -> dict[str, Any]:
    """Every planted graph, both ways, against each other and against the answers written by hand."""
    import mixlist
    from tests.support.builders import model as graph
    from tests.support.planted_models import PLANTED

    wrong = []
    for case in PLANTED:
        told = {}
        for way in (provider, "cpu"):
            try:
                report = mixlist.check(graph(case.text), case.policy, case.feeds, provider=way)
                told[way] = {_name(n): n.kind for n in report.nodes}
            except Exception as problem:  # one that fails must not hide the others
                told[way] = {"": f"{type(problem).__name__}: {problem}"}
        if any(kinds != case.kinds for kinds in told.values()):
            wrong.append({"graph": case.name, "by hand": case.kinds, "native": told[provider], "emulated": told["cpu"]})
    return {"name": "planted", "graphs": len(PLANTED), "wrong": wrong}


def model(name: str, provider: str, folder: str, lists: str, mode: str) -> dict[str, Any]:
    """One model of the corpus, both ways."""
    import mixlist
    from mixlist.targets.kernels import find_nodes_without_low_kernel
    from tests.corpus.feeds import feeds

    path = Path(folder, f"{name}.onnx")
    policy = mixlist.load_policy(ops_info=lists, precision_mode_v2=mode)
    told, findings = {}, {}
    for way, where in (("native", provider), ("emulated", "cpu")):
        start = time.monotonic()
        report = mixlist.check(path, policy, feeds(name), provider=where, isolate=True)
        told[way] = {**_summary(report), "seconds": round(time.monotonic() - start, 1)}
        findings[way] = {_name(n): n for n in report.nodes if n.kind != "internal-risk"}
    plan = mixlist.resolve(path, policy)
    bare = {f"{d.scope}/{d.name}".lstrip("/") for d in find_nodes_without_low_kernel(plan, "cuda")}
    low = [d for d in plan.nodes if d.precision == policy.mode.low]
    differing = [
        {"node": node, "no low kernel": node in bare, **{w: _finding(findings[w].get(node)) for w in findings}}
        for node in dict.fromkeys([*findings["native"], *findings["emulated"]])
        if _kind(findings["native"].get(node)) != _kind(findings["emulated"].get(node))
    ]
    kernels = {"low": len(low), "without": len(bare)}
    return {"name": name, "lists": lists, "mode": mode, **told, "kernels": kernels, "differing": differing}


def _summary(report: Any) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "mode": report.mode,
        "rate": report.exception_rate,
        "first": [_name(n) for n in report.nodes if n.first],
        "worst": _plain(max((o.normalized_error for o in report.outputs), default=0.0)),
        "outputs": {o.name: [_plain(o.normalized_error), _plain(o.max_abs_error)] for o in report.outputs},
        "reasons": list(report.reasons),
        "warnings": list(report.warnings),
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


# --- what is told ---


def tell(result: Any) -> str:
    """The lines of one result."""
    if result["name"] == "planted":
        told = [f"planted: {result['graphs'] - len(result['wrong'])} of {result['graphs']} graphs as written by hand"]
        return "\n".join([*told, *(f"  {json.dumps(each)}" for each in result["wrong"])])
    head = f"{result['name']} {result['lists']} {result['mode']}"
    lines = [f"{head}: {_way('native', result)}; {_way('emulated', result)}; {_agreement(result)}"]
    differing = result["differing"]
    lines += [f"  {json.dumps(each)}" for each in differing[:SHOWN]]
    lines += [f"  and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
    return "\n".join(lines)


def _way(way: str, result: Any) -> str:
    told = result[way]
    first = ", ".join(told["first"][:3]) + (", ..." if len(told["first"]) > 3 else "")
    errors = f"worst normalised error {_short(told['worst'])}"
    return f"{way} {told['verdict']}, {len(told['first'])} first ({first}), rate {told['rate']:.0%}, {errors}"


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
        print(json.dumps(one(*sys.argv[2:])))
    else:
        main()
