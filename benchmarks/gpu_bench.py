#!/usr/bin/env python3
"""Measure the speed of mixed precision on a GPU: `mixlist bench` for a model of BERT-base's size and the corpus.

    python benchmarks/gpu_bench.py FOLDER [--out FILE] [--budget SECONDS] [--rounds N] [--only WORD]

FOLDER holds the corpus (``python tests/corpus/fetch.py FOLDER``); models that are missing are left out. The lists are
``onnx`` and ``ascend910b``. The float16 models of other converters are timed against float32 too:
``convert_float_to_float16(keep_io_types=True)`` of onnxruntime.transformers and, if it is installed (requirements.txt),
of onnxconverter-common. The script prints a Markdown table, and appends each result to FILE at once, a line of JSON for
each task. Float32 runs with ONNX Runtime's defaults for CUDA, with TF32. The first batch of each model is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from bert import feed as bert_feed  # noqa: E402
from bert import write_bert  # noqa: E402
from clock import machine  # noqa: E402
from gpu_tasks import card, require_provider, run_all  # noqa: E402

BATCHES = (8, 1, 32)
LISTS = ("onnx", "ascend910b")
PEERS = {
    "onnxruntime.transformers": "onnxruntime",
    "onnxconverter-common": "onnxconverter_common",
}  # and package
HEAD = (
    "model", "lists", "float32 ms", "mixed ms", "mixed / float32 (95 %)", "low nodes (with kernel)",
    "low nodes that ran", "Casts inserted by ONNX Runtime", "device memory, MiB (float32, mixed)",
)  # fmt: skip


def main() -> None:
    """Run every task and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("gpu_bench.jsonl"))
    parser.add_argument("--budget", type=float, default=480)
    parser.add_argument("--limit", type=float, default=150, help="seconds for one task")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--layers", type=int, default=12, help="layers of the generated model")
    parser.add_argument("--only", default="", help="run only the tasks whose words contain this text")
    parser.add_argument("--provider", default="cuda", help="cpu: try the script without a GPU")
    options = parser.parse_args()
    require_provider(options.provider)
    with tempfile.TemporaryDirectory() as home:
        bert = str(write_bert(Path(home, "bert.onnx"), options.layers))
        corpus = sorted(map(str, options.folder.glob("*.onnx")))
        peers = [peer for peer, package in PEERS.items() if find_spec(package)]
        tasks = [(bert, str(batch), lists) for lists in LISTS for batch in BATCHES]
        tasks += [(bert, str(BATCHES[0]), peer) for peer in peers]
        tasks += [(path, "0", lists) for lists in LISTS for path in corpus]
        tasks += [(bert, str(batch), peer) for peer in peers for batch in BATCHES[1:]]
        tasks += [(path, "0", peer) for peer in peers for path in corpus]
        selected = [(*task, options.provider, str(options.rounds)) for task in tasks if options.only in " ".join(task)]
        print(f"{card()}; {machine()}; {options.rounds} rounds; a budget of {options.budget:.0f} s\n")
        print(_row(HEAD), _row(["---"] * len(HEAD)), sep="\n", flush=True)
        run_all(__file__, selected, options.out, format_result, options.budget, 1, options.limit)


# --- one task, in a process of its own ---


def run_task(path: str, batch: str, lists: str, provider: str, rounds: str) -> dict[str, Any]:
    """Run one bench; return its report as JSON, with the names of the model and of the lists or the converter."""
    import mixlist
    from tests.corpus.feeds import feeds

    name = Path(path).stem
    data = bert_feed(int(batch)) if name == "bert" else feeds(name)[0]
    title = f"BERT-base size, batch {batch} x 128" if name == "bert" else name
    with tempfile.TemporaryDirectory() as home:
        is_peer = lists in PEERS
        other = _peer(lists, path, Path(home, "peer.onnx")) if is_peer else mixlist.load_policy(ops_info=lists)
        report = mixlist.bench(path, other, [data], provider=provider, rounds=int(rounds))
    return {"name": title, "lists": lists, **report.to_json()}


def _peer(peer: str, path: str, out: Path) -> Path:
    """Write the float16 model of another converter, with float32 inputs and outputs; return its path."""
    import warnings

    import onnx

    if peer == "onnxconverter-common":
        from onnxconverter_common.float16 import convert_float_to_float16
    else:
        from onnxruntime.transformers.float16 import convert_float_to_float16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values that it clips
        converted = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    if peer == "onnxruntime.transformers":  # it leaves the nodes unsorted; ONNX Runtime's own tools sort them like this
        from onnxruntime.transformers.onnx_model import OnnxModel

        OnnxModel(converted).topological_sort()
    onnx.save(converted, out)
    return out


# --- the table ---


def format_result(result: Any) -> str:
    """Return one row of the table."""
    timing = result["timing"]
    float32, mixed, ratio = timing["original"], timing["other"], timing["ratio"]
    failed = float32["failure"] or mixed["failure"]
    if failed:
        return _row([result["name"], result["lists"], f"failed: {failed[:300]}"])
    times = [f"{contender['seconds']['median'] * 1000:.3g}" for contender in (float32, mixed)]
    low, kernels = mixed["low_nodes"], mixed["low_kernels"]
    # There is no ratio of fewer than ten rounds.
    bounds = f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else timing["verdict"]
    ran = mixed["profile"]["low_nodes"] if mixed["profile"] else "?"
    casts = mixed["graph"]["inserted_casts"] if mixed["graph"] else "?"
    memory = ", ".join(_mebibytes(contender["profile"]) for contender in (float32, mixed))
    return _row([result["name"], result["lists"], *times, bounds, f"{low} ({kernels})", ran, casts, memory])


def _mebibytes(profile: Any) -> str:
    return f"{profile['arena'] / 2**20:.0f}" if profile and profile["arena"] else "?"


def _row(cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(run_task(*sys.argv[2:])))
    else:
        main()
