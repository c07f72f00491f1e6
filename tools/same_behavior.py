#!/usr/bin/env python3
"""Compare the behavior of the work tree, uncommitted changes included, with that of the commit BASE.

    python tools/same_behavior.py BASE --models DIR            # everything
    python tools/same_behavior.py BASE --models DIR --quick    # five models, two libraries, 60 graphs, no search
    python tools/same_behavior.py BASE --models DIR --prose    # and the output as text

DIR holds models as NAME.onnx and, for each, one batch of inputs as NAME.npz; a model without one is checked on random
data. Without --models only the random graphs of the tests are compared. BASE's own tests generate the graphs, once.

The same commands run on both sides: all that read models or lists, the Python API, and wrong calls. Exit statuses,
decisions, written files, findings, numbers, edits, the data of pages, and the messages of commands that fail are
compared, the messages without numbers and folders. With --prose, reasons and the output as text are compared, too.
Seconds are not compared.

Graphs with functions, sequences or optionals are left out.

Exit status 0: no difference. 1: differences, all of them in WORKDIR/differences-TREE.txt. 2: nothing could be compared.
WORKDIR keeps BASE's worktree, virtual environment and outcomes, so that later runs only run the work tree.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT, CACHE = Path(__file__).resolve().parent.parent, Path.home() / ".cache" / "mixlist-same-behavior"
COMMANDS = (
    "resolve", "apply", "check", "tune", "repair", "export", "view", "diff", "bench", "validate", "fmt",
    "lists", "python", "errors",
)  # fmt: skip
LIBRARIES = ("onnx", "ascend910b", "mindspore-o2", "mindspore-o3")
QUICK_MODELS, QUICK_GRAPHS, TUNED_MODELS = 5, 60, 4
# Random graphs have these policies in turn; the models do not cover them.
GRAY_POLICIES = ("", "--gray-policy between", "--gray-policy promote")
MODES = ("", "--constants clamp", "--precision-mode-v2 mixed_bfloat16", "--constants ieee", "--precision-mode-v2 fp16")
TIMES = {"seconds"}
PROSE = {"reason", "reasons", "warnings", "source", "suggestion", "why", "without", "differences"}
KINDS = {"resolve": "decisions", "apply": "written files", "check": "findings", "tune": "edits or lists"}
TOOLS = ("ort", "onnxconverter", "modelopt", "atc --library ascend910b")
THEN = ";"  # separates the command lines of a job that has several
UNSUPPORTED = ("Sequence", "Optional")  # parts of op types that are left out; "ReverseSequence" is none of them
PAGE_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
NUMBER, FOLDERS, GAPS = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?"), re.compile(r"(?:/[\w.@#+-]+)+/"), re.compile(r"[ \n-]+")
# Wrong calls: M is a model, L a list file.
WRONG_CALLS = (
    "resolve nothing.onnx", "resolve L", "resolve M --mixlist M", "resolve M --ops-info nothing", "resolve M --modus",
    "resolve M --precision-mode fp17", "resolve M --op-names ascend", "resolve M --explain nothing",
    "apply M", "apply M -o nothing/out.onnx", "apply M -o M", "apply L -o out.onnx", "check M", "check M --random 0",
    "check M --data nothing", "check M --data L", "check M --random 1 --provider gpu", "check M --random 1 --dim x",
    "check M --random 1 --mixed-model nothing.onnx", "tune M --random 1", "tune M -o L --random 1",
    "repair M -o out.onnx",
    "export M", "export M --for nothing", "view M", "diff onnx", "diff onnx L",
    "bench M", "validate", "validate nothing.json", "validate L --model L", "fmt nothing.json", "lists --ops-info L",
    "lists --mixlist nothing.json", "nothing",
)  # fmt: skip
SAME_VERSIONS = ("numpy", "onnx", "onnxruntime")  # the same on both sides: other versions compute other numbers
SECONDS_PER_COMMAND, LISTED_PER_KIND = 600, 25
Outcome = dict[
    str, Any
]  # "status", "out" (JSON of stdout, else text), "error" (stderr), "files" (their content by name)


def serve(root: Path) -> None:
    """Run the command lines that stdin brings, one JSON array a line, and write one outcome a line to stdout."""
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # ONNX Runtime and child processes must not write between outcomes
    # The entry point of the tree itself: that of the installed package may be older.
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, function = project["scripts"]["mixlist"].partition(":")
    main = getattr(importlib.import_module(module), function)

    def command(args: list[str]) -> int:
        return call_python(args[1:]) if args[0] == "python" else main(args)

    imported = Path(sys.modules["mixlist"].__file__ or "").resolve()
    if not imported.is_relative_to(root.resolve()):
        raise ImportError(f"mixlist was imported from {imported}, not from {root}")
    print("ready", file=outcomes, flush=True)
    for line in sys.stdin:
        print(json.dumps(run_command(command, json.loads(line))), file=outcomes, flush=True)


def run_command(command: Any, args: list[str]) -> Outcome:
    """Run the command lines of a job in a new folder, until one fails; the outcome is that of the last one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for is_separator, words in itertools.groupby(args, lambda word: word == THEN):
            if is_separator:
                continue
            output, error = io.BytesIO(), io.StringIO()
            stdout = io.TextIOWrapper(output, encoding="utf-8", write_through=True)
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(error):
                try:
                    status = command(list(words)) or 0
                except SystemExit as end:
                    status = end.code or 0
            if status not in (0, 1):
                return {"status": status, "error": error.getvalue()}
        files = {str(path): read_output(path) for path in sorted(Path().rglob("*")) if path.is_file()}
    text = output.getvalue().decode()
    try:
        return {"status": status, "out": json.loads(text or "null"), "files": files}
    except json.JSONDecodeError:
        return {"status": status, "out": text, "files": files}


def read_output(path: Path) -> Any:
    """Return what is compared of a file: the JSON or the data of a page, else the SHA-256."""
    content = path.read_bytes()
    with contextlib.suppress(ValueError):
        if path.suffix == ".html":
            return [json.loads(data) for data in PAGE_DATA.findall(content.decode())]
        if path.suffix == ".json":
            return json.loads(content)
    return hashlib.sha256(content).hexdigest()


def call_python(args: list[str]) -> int:
    """Call the Python functions for a model, a library and a batch, and print their results as JSON."""
    import numpy as np

    import mixlist

    path, library, batch = args
    with np.load(batch) as arrays:
        feed = dict(arrays)
    policy = mixlist.load_policy(ops_info=library)
    plan = mixlist.resolve(path, policy)
    mixlist.rewrite(path, plan).save("api.onnx")
    results = {
        "resolve": plan.to_json(),
        "check": mixlist.check(path, policy, [feed]).to_json(),
        "export": mixlist.export(path, policy, "ort").to_json(),
        "texts": [repr(value) for value in (policy, plan, mixlist.diff(policy, policy))],
    }
    print(json.dumps(results, default=str))
    return 0


def generate(root: Path, folder: Path, count: int) -> None:
    """Write random graphs of the tests in ``root`` as NNNN.onnx, and inputs for each as NNNN.npz."""
    import numpy as np
    from hypothesis import HealthCheck, Phase, given, seed, settings

    (file,) = (root / "tests").rglob("graphs.py")
    graphs = importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))
    written: set[bytes] = set()
    no_deadline = settings(deadline=None, suppress_health_check=list(HealthCheck))

    @seed(0)  # "derandomize" would depend on the source of this function
    @settings(no_deadline, max_examples=2 * count, database=None, phases=[Phase.generate])  # graphs can repeat
    @given(graphs.cases())
    def write(case: Any) -> None:
        data = case.model.SerializeToString(deterministic=True)
        if data in written or len(written) == count:
            return
        (folder / f"{len(written):04}.onnx").write_bytes(data)
        # The generator keeps values within -1 and 1, where little overflows: every other graph reads larger ones.
        factor = 1000 if len(written) % 2 else 1
        feeds = case.feeds(seed=len(written)).items()
        np.savez(folder / f"{len(written):04}.npz", **{name: value * value.dtype.type(factor) for name, value in feeds})
        written.add(data)

    write()


class Side(NamedTuple):
    """A source tree and the interpreter that runs it."""

    name: str
    python: Path
    tree: Path
    hash_seed: str

    def start(self, temporary: str, *role: str) -> subprocess.Popen[str]:
        """Start a process of this side that runs this file in a role, with a folder for temporary files."""
        variables = {"PYTHONPATH": str(self.tree), "PYTHONHASHSEED": self.hash_seed, "TMPDIR": temporary}
        environment = {**os.environ, **variables, "PYTHONDONTWRITEBYTECODE": "1"}
        args = [str(self.python), "-P", __file__, role[0], str(self.tree), *role[1:]]
        pipe = subprocess.PIPE
        return subprocess.Popen(args, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True)


class Worker:
    """A process of a side that runs many command lines. A new process starts when a command line ends the old one."""

    def __init__(self, side: Side) -> None:
        self.side = side
        # Commands leave models that made ONNX Runtime crash in the temporary folder: it is deleted with this worker.
        self.temporary = tempfile.TemporaryDirectory(prefix="same-behavior-", ignore_cleanup_errors=True)
        self._start()

    def _start(self) -> None:
        self.process = self.side.start(self.temporary.name, "--serve")
        if not self.process.stdout.readline():
            raise RuntimeError(f"{self.side.name} cannot be imported")

    def run(self, args: Sequence[str]) -> Outcome:
        """Run one command line; a process that dies, or runs too long, is an outcome."""
        start, line = time.monotonic(), ""
        timer = threading.Timer(SECONDS_PER_COMMAND, self._kill)
        timer.start()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(args), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        timer.cancel()
        if line:
            return json.loads(line)
        self._kill()
        self._start()
        return {"status": "died" if time.monotonic() - start < SECONDS_PER_COMMAND else "timed out"}

    def _kill(self) -> None:
        """Kill the process with the children that its commands started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End the process and remove its files."""
        self._kill()
        self.temporary.cleanup()


def git(*args: str) -> str:
    """Run git in this repository and return its standard output."""
    return subprocess.run(["git", "-C", str(ROOT), *args], check=True, stdout=subprocess.PIPE, text=True).stdout


def prepare_base(commit: str, home: Path, constraints: str) -> Side:
    """Build BASE in ``home`` if it is not there: a worktree, and a virtual environment with the same packages."""
    tree, python, finished = home / "tree", home / "venv" / "bin" / "python", home / "finished"
    if not finished.exists():
        print(f"building {commit[:12]} in {home}", file=sys.stderr)
        if not tree.exists():
            git("worktree", "add", "--force", "--detach", str(tree), commit)  # --force: its folder may have been lost
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / "venv")], check=True)
        (home / "constraints.txt").write_text(constraints)
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(home / "constraints.txt")]
        subprocess.run([*install, "--editable", f"{tree}[cpu]", "hypothesis"], check=True)
        finished.touch()
    return Side("BASE", python, tree, hash_seed="0")


def snapshot(tree: Path, folder: Path) -> Side:
    """Copy the work tree, so that edits during the comparison do not mix two states of it."""
    for name in git("-C", str(tree), "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        if name and (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, folder / name)
    # The hash seed is not BASE's: results must not depend on the order of a set.
    return Side("work tree", Path(sys.executable), folder, hash_seed="1")


def random_graphs(base: Side, home: Path, number: int) -> list[Path]:
    """Return graphs that BASE generates, evenly spread over at least 1000: the first ones are the smallest."""
    count = max(1000, 2 * number)
    folder = home / f"graphs-{count}"
    folder.mkdir(exist_ok=True)
    if not (folder / f"{count - 1:04}.npz").exists():
        print(f"generating {count} random graphs", file=sys.stderr)
        base.start(str(folder), "--generate", str(folder), str(count)).wait()
    plain = [path for path in sorted(folder.glob("*.onnx")) if is_plain(path)]
    return [plain[k * len(plain) // number] for k in range(min(number, len(plain)))]


def is_plain(path: Path) -> bool:
    """Return whether a model has no functions, sequences or optionals."""
    import onnx

    model = onnx.load(path)
    waiting = [*model.graph.node]
    while waiting:
        node = waiting.pop()
        if any(part in node.op_type.replace("ReverseSequence", "") for part in UNSUPPORTED):
            return False
        waiting += [inner for attribute in node.attribute for inner in attribute.g.node]
    values = [*model.graph.input, *model.graph.output]
    return not model.functions and all(value.type.HasField("tensor_type") for value in values)


class Job(NamedTuple):
    """One command line, and the words under which the report lists it."""

    label: str
    command: str
    args: tuple[str, ...]
    inputs: str  # SHA-256 of the model and its inputs


def jobs_for(path: Path, commands: Sequence[str], library: str, policy: str | None, prose: bool) -> list[Job]:
    """Return the command lines for one model under one library; only a random graph has a policy."""
    graph, feeds, model = policy is not None, path.with_suffix(".npz"), str(path)
    digest = hashlib.sha256(path.read_bytes() + (feeds.read_bytes() if feeds.exists() else b"")).hexdigest()
    data = ["--data", str(feeds)] if feeds.exists() else ["--random", "1"]
    keep = ["--io", "low"] if graph and int(digest, 16) % 2 else []
    shared = ["--ops-info", library, *(policy or "").split()]
    tool = TOOLS[int(digest[:4], 16) % len(TOOLS)].split()
    apply = ["apply", model, "-o", "out.onnx", *(keep if graph else ["--external-data", "yes"])]
    check = ["check", model, *data, *(["--per-tensor"] if graph else [])]
    half = ["apply", model, "-o", "half.onnx", "--precision-mode-v2", "fp16"]
    lines = {
        "resolve": [["resolve", model, "--format", "json", *shared]],
        "apply": [[*apply, *shared]],
        "check": [[*check, "--format", "json", *shared]],
        "tune": [["tune", model, "--format", "json", *data, "-o", "list.json", "--jobs", "1", *shared]],
        "repair": [half, ["repair", "half.onnx", "-o", "out.onnx", "--format", "json", *data, "--jobs", "1"]],
        "export": [["export", model, "--for", *tool, *shared]],
        "view": [["view", model, "-o", "page.html", *shared]],
        "diff": [["diff", "onnx", library, "--model", model, "--format", "json"]],
        "bench": [["bench", model, "--estimate", "--format", "json", *shared]],
        "python": [["python", model, library, str(feeds)]],
    }
    texts = {"resolve": [["resolve", model, *shared]], "check": [[*check, *shared]]} if prose else {}
    words = " ".join(["graph" if graph else "model", path.stem, *shared])
    return [
        Job(f"{name}{title} {words}", name, tuple(join_lines(command_lines)), digest)
        for title, table in (("", lines), (" as text", texts))
        for name, command_lines in table.items()
        if name in commands and (name != "python" or feeds.exists())
    ]


def join_lines(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the words of command lines, with THEN between the lines."""
    for number, line in enumerate(lines):
        yield from ([THEN] if number else []) + list(line)


def list_jobs(tree: Path, folder: Path, models: Sequence[Path]) -> list[Job]:
    """Return the command lines for the list files in BASE's documents, and the wrong calls."""
    jobs = []
    for document in sorted((tree / "docs").rglob("*.md")):
        for number, text in enumerate(re.findall(r"```json\n(.*?)```", document.read_text("utf-8"), re.DOTALL)):
            path = folder / f"{document.stem}-{number}.json"
            path.write_text(text, "utf-8")
            digest = hashlib.sha256(text.encode()).hexdigest()
            model = str(models[number % len(models)])
            lines = {
                "validate": [["validate", str(path), "--format", "json", "--model", model]],
                "fmt": [["fmt", "--check", str(path)]],
                "lists": [["lists", "--mixlist", str(path), "--format", "json"]],
            }
            jobs += [Job(f"{name} {path.name}", name, tuple(join_lines(line)), digest) for name, line in lines.items()]
    lists = sorted(folder.glob("*.json"))
    for line in WRONG_CALLS if lists else ():
        words = {"M": str(models[0]), "L": str(lists[0])}
        jobs.append(Job(f"errors {line}", "errors", tuple(words.get(word, word) for word in line.split()), line))
    return jobs


def all_jobs(options: argparse.Namespace, graphs: Sequence[Path], base: Side, home: Path) -> list[Job]:
    """Return every command line of the comparison. ``home``: a folder for list files."""
    libraries = ("onnx", "mindspore-o3") if options.quick else LIBRARIES
    models = sorted(options.models.glob("*.onnx"), key=lambda path: path.stat().st_size) if options.models else []
    jobs: list[Job] = []
    for index, path in enumerate(models[: QUICK_MODELS if options.quick else None]):
        more = ("tune", "repair", "python") if index < TUNED_MODELS and not options.quick else ()
        for library in libraries:
            commands = ("resolve", "apply", "check", "export", "view", "diff", "bench", *more)
            jobs += jobs_for(path.resolve(), commands, library, None, options.prose)
    for number, path in ((int(path.stem), path) for path in graphs):
        for index, library in enumerate(libraries):
            # A check starts a process, which takes most of the time: each graph is checked under one library.
            more = ["check"] if index == number // 4 % len(libraries) else []
            # The others run on every eighth graph.
            if number % 8 == 0 and index == number // 8 % len(libraries):
                searches = [] if options.quick else ["tune", "repair"]
                more += ["export", "view", "diff", "bench", "python", *searches]
            policy = f"{GRAY_POLICIES[(number + index) % len(GRAY_POLICIES)]} {MODES[(number + index) % len(MODES)]}"
            jobs += jobs_for(path, ("resolve", "apply", *more), library, policy, options.prose)
    jobs += list_jobs(base.tree, home, [*models, *graphs])
    return [job for job in jobs if job.command in options.only]


def run_all(side: Side, jobs: Sequence[Job], workers: int, cache: Path | None) -> list[Outcome]:
    """Run the jobs on one side; an outcome that is in the cache is read from there."""
    idle, outcomes = SimpleQueue[Worker](), list[Outcome]()

    def run(job: Job) -> Outcome:
        cached = cache / hashlib.sha256(json.dumps([job.args, job.inputs]).encode()).hexdigest() if cache else None
        if cached is not None and cached.exists():
            return json.loads(cached.read_text("utf-8"))
        worker = idle.get()
        try:
            outcome = worker.run(job.args)
        finally:
            idle.put(worker)
        if cached is not None:
            part = cached.with_suffix(f".{os.getpid()}")  # renamed when complete: this tool may be killed
            part.write_text(json.dumps(outcome), "utf-8")
            part.replace(cached)
        return outcome

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        for _ in range(workers):
            idle.put(stack.enter_context(contextlib.closing(Worker(side))))
        for outcome in pool.map(run, jobs):
            outcomes.append(outcome)
            if len(outcomes) % 250 == 0:
                print(f"{side.name}: {len(outcomes)} of {len(jobs)} commands", file=sys.stderr)
    return outcomes


def comparable(value: Any, prose: bool) -> Any:
    """Return the JSON value without times, and without ``prose`` also without sentences; texts without numbers."""
    if isinstance(value, list):
        return [comparable(item, prose) for item in value]
    if isinstance(value, str) and "\n" in value:
        return normalized(value) if prose else None
    if not isinstance(value, dict):
        return value
    left_out = TIMES if prose else TIMES | PROSE
    compared = {key: comparable(item, prose) for key, item in value.items() if key not in left_out}
    # The edits of a trial are sentences: their number stays.
    is_trial = {"edits", "passed"} <= compared.keys() and not prose
    return {**compared, "edits": len(compared["edits"])} if is_trial else compared


def normalized(text: str) -> str:
    """Return a text without numbers, folders, line ends and the width of gaps."""
    return GAPS.sub(" ", FOLDERS.sub("", NUMBER.sub("#", text))).strip()


def unequal(path: str, base: Any, current: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each place where two JSON values differ: its path and both values."""
    if isinstance(base, dict) and isinstance(current, dict):
        for key in dict.fromkeys([*base, *current]):
            yield from unequal(f"{path}.{key}", base.get(key, "(absent)"), current.get(key, "(absent)"))
    elif isinstance(base, list) and isinstance(current, list):
        for index, pair in enumerate(itertools.zip_longest(base, current, fillvalue="(absent)")):
            name = f" {pair[0]['name']}" if isinstance(pair[0], dict) and "name" in pair[0] else ""
            yield from unequal(f"{path}[{index}{name}]", *pair)
    elif base != current or isinstance(base, bool) != isinstance(current, bool):
        yield path, base, current


def compare(job: Job, base: Outcome, current: Outcome, prose: bool) -> list[tuple[str, str]]:
    """Return the differences of one job: the kind of each and one line of text."""
    if base["status"] != current["status"]:
        return [("exit status", f"{job.label}: {base['status']} -> {current['status']}: {current.get('error', '')}")]
    messages = [normalized(outcome.get("error", "")) for outcome in (base, current)]
    if messages[0] != messages[1]:
        return [("messages", f"{job.label}: {messages[0]!r} -> {messages[1]!r}")]
    findings: list[str] = []
    numbers: list[tuple[float, str]] = []  # with the relative difference
    for path, old, new in unequal("", *(comparable({**outcome, "error": ""}, prose) for outcome in (base, current))):
        line = f"{path[1:]}: {json.dumps(old)[:200]} -> {json.dumps(new)[:200]}"
        if {type(old), type(new)} in ({float}, {float, int}):  # two integers are counts, and so findings
            numbers.append((abs(old - new) / max(abs(old), abs(new)), line))
        else:
            findings.append(line)
    differences = []
    if findings:
        differences.append(
            (KINDS.get(job.command, job.command), f"{job.label}: {findings[0]} (first of {len(findings)} places)")
        )
    if numbers:
        relative, line = max(numbers)
        differences.append(("numbers", f"{job.label}: {relative:.3g} at {line} (largest of {len(numbers)} places)"))
    return differences


def report(jobs: Sequence[Job], base: Sequence[Outcome], differences: Sequence[tuple[str, str]], file: Path) -> int:
    """Write all differences to the file and some of each kind to stdout, and a closing line; return the exit status."""
    failed = sum(outcome["status"] not in (0, 1) for outcome in base)
    counts = Counter(kind for kind, _ in differences)
    file.write_text("".join(f"{kind}: {line}\n" for kind, line in differences), "utf-8")
    for kind, number in sorted(counts.items(), key=lambda item: item[0] == "numbers"):  # numbers last
        lines = [line for line_kind, line in differences if line_kind == kind]
        more = [f"and {number - LISTED_PER_KIND} more, see {file}"] if number > LISTED_PER_KIND else []
        print(f"{kind} of {number} commands:", *lines[:LISTED_PER_KIND], *more, sep="\n  ")
    commands = ", ".join(f"{number} {name}" for name, number in Counter(job.command for job in jobs).items())
    summary = ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "none"
    compared = f"{len({job.inputs for job in jobs})} models, {len(jobs)} commands ({commands}; {failed} fail in BASE)"
    print(f"{compared}; differences: {summary}")
    return int(bool(differences))


def read_options(args: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument("--models", metavar="DIR", type=Path, help="a folder of NAME.onnx and NAME.npz")
    parser.add_argument("--graphs", metavar="N", type=int, default=500, help="random graphs [default: 500]")
    parser.add_argument("--only", metavar="LIST", default=",".join(COMMANDS), help="commands [default: %(default)s]")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="commands that run at a time [default: 1]")
    parser.add_argument("--quick", action="store_true", help="five models, two libraries, 60 graphs, no search")
    parser.add_argument("--prose", action="store_true", help="compare sentences and the output as text, too")
    parser.add_argument("--tree", metavar="DIR", type=Path, default=ROOT, help="the work tree [default: this one]")
    parser.add_argument("--workdir", metavar="DIR", type=Path, default=CACHE, help="[default: %(default)s]")
    options = parser.parse_args(args)
    options.only, options.tree = options.only.split(","), options.tree.resolve()
    if not set(options.only) <= set(COMMANDS):
        parser.error(f"--only takes some of {','.join(COMMANDS)}")
    if options.models and not any(options.models.glob("*.onnx")):
        parser.error(f"--models: there is no .onnx file in {options.models}")
    return options


def main(args: list[str]) -> int:
    """Compare both sides; return the exit status."""
    options = read_options(args)
    commit = git("rev-parse", "--verify", f"{options.base}^{{commit}}").strip()
    constraints = "".join(f"{name}=={metadata.version(name)}\n" for name in SAME_VERSIONS)
    # Outcomes hold for these packages and this number of cores: sums in threads depend on it.
    setting = hashlib.sha256(f"{constraints} {os.cpu_count()}".encode()).hexdigest()
    home = options.workdir.resolve() / f"{commit[:12]}-{setting[:8]}"
    (home / "outcomes").mkdir(parents=True, exist_ok=True)
    base = prepare_base(commit, home, constraints)
    graphs = random_graphs(base, home, QUICK_GRAPHS if options.quick else options.graphs)
    jobs = all_jobs(options, graphs, base, home)
    before = run_all(base, jobs, options.jobs, home / "outcomes")
    with tempfile.TemporaryDirectory(prefix="current-", dir=home) as folder:
        after = run_all(snapshot(options.tree, Path(folder)), jobs, options.jobs, None)
    differences = [
        line for outcomes in zip(jobs, before, after, strict=True) for line in compare(*outcomes, options.prose)
    ]
    return report(jobs, before, differences, options.workdir / f"differences-{options.tree.name}.txt")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve", tree]:
            serve(Path(tree))
        case ["--generate", tree, destination, number]:
            generate(Path(tree), Path(destination), int(number))
        case command_line:
            try:
                sys.exit(main(command_line))
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                print(f"same_behavior: {error}", file=sys.stderr)
                sys.exit(2)
