"""``make campaign``: the recipes of docs/guides/tools.md run with Olive, Optimum, MLflow and TensorBoard themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.docs.test_commands import blocks_of
from tests.support.package import data_folder

from .conftest import CAMPAIGN

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "tools.md"
pytestmark = [pytest.mark.skipif(not CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it"), pytest.mark.timeout(3600)]
# A model of Hugging Face without a download: random weights and a small vocabulary.
MAKE_BERT = """
from pathlib import Path
from transformers import BertConfig, BertModel, BertTokenizerFast

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
Path("vocab.txt").write_text("\\n".join(words))
config = BertConfig(
    vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
)
BertModel(config).save_pretrained("bert")
BertTokenizerFast("vocab.txt").save_pretrained("bert")
"""
READ_TENSORBOARD = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator("runs/check")
events.Reload()
print(*events.Tags()["scalars"])
"""


@pytest.fixture
def run(tmp_path: Path, interpreter: Callable[[str], str]) -> Callable[..., str]:
    """Return a function that runs a command with the programs of a tool's environment, among the files of the guide."""
    for block in blocks_of(GUIDE):
        if block.file:
            (tmp_path / block.file).write_text(block.text, "utf-8")
    for name in ("digits.onnx", "digits.npz"):
        shutil.copy(data_folder("demo_data") / name, tmp_path)

    def call(tool: str, *command: str) -> str:
        python = Path(interpreter(tool))
        paths = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
        offline = {"HF_HUB_OFFLINE": "1", "OLIVE_DISABLE_TELEMETRY": "1", "MLFLOW_TRACKING_URI": "sqlite:///runs.db"}
        completed = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **paths, **offline}, capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout + completed.stderr

    return call


@pytest.mark.xdist_group("olive")
def test_olive_runs_the_pass(run: Callable[..., str], tmp_path: Path) -> None:
    run("olive", "olive", "run", "--config", "olive.json", "--package-config", "package.json")
    (written,) = (tmp_path / "olive_output").rglob("*.onnx")
    assert any(node.op_type == "Cast" for node in onnx.load(written).graph.node)
    # Without tune, mindspore-o3 overflows on these data: the pass fails, and Olive writes no model.
    settings = (tmp_path / "olive.json").read_text().replace('"tune": true', '"tune": false').replace("_output", "_2")
    (tmp_path / "olive2.json").write_text(settings)
    output = run("olive", "olive", "run", "--config", "olive2.json", "--package-config", "package.json")
    assert "fail in mixed precision" in output and not list((tmp_path / "olive_2").rglob("*.onnx"))


@pytest.mark.xdist_group("optimum")
def test_optimum_exports_a_model_for_transformers_js(run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "make_bert.py").write_text(MAKE_BERT)
    run("optimum", "python", "make_bert.py")
    assert "PASS" in run("optimum", "sh", "export_model.sh", "bert")
    names = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "my-model").rglob("*") if path.is_file()}
    assert {"my-model/onnx/model.onnx", "my-model/onnx/model_fp16.onnx", "my-model/config.json"} <= names


@pytest.mark.xdist_group("optimum")
def test_mlflow_and_tensorboard_show_a_check(run: Callable[..., str], tmp_path: Path) -> None:
    options = ("--random", "2", "--dim", "batch=16", "--range", "pixels=0:16", "--layerwise", "--format", "json")
    report = run("optimum", "python", "-m", "mixlist", "check", "digits.onnx", *options)
    (tmp_path / "report.json").write_text(report[report.index("{") : report.rindex("}") + 1])
    run("optimum", "python", "log_mlflow.py")
    show = "import mlflow; print(mlflow.last_active_run() or mlflow.search_runs(output_format='list')[0].data.metrics)"
    assert "logits/normalized_error" in run("optimum", "python", "-c", show)
    run("optimum", "python", "log_tensorboard.py")
    (tmp_path / "read.py").write_text(READ_TENSORBOARD)
    assert "logits/cosine" in run("optimum", "python", "read.py")
