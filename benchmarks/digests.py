"""Digests of what mem1 computes, to see that a change of the code changes no number.

python benchmarks/digests.py --out digests.json                     a few minutes on one core
python benchmarks/digests.py --compare digests.json                 prints what differs, exit code 1 if anything does
python benchmarks/digests.py --only eval --keep old                 also writes what was digested, to be diffed

Digests hold for one machine: another CPU, torch or Python rounds differently. To compare with an older commit, run its
own copy of this script there: `COMMANDS` below is written for the command line of its commit.

Everything goes through the command line and the files that it writes. What is digested says what was computed, not how
it is called:

rows, metrics, JSON    all numbers in sorted order, without keys, texts, times and empty values
trajectories           per turn its token ids, log-probs, text, state, action (without the wording of an error) and
                       observation; reward, scores, ending, answer, attempt, the task's prompt and gold answers
weights                per tensor of the safetensors its dtype, shape and bytes, without names
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}

_TIMES = ("second", "free")
"""Parts of the keys whose values depend on the machine's speed or load."""

# --- what is run -----------------------------------------------------------------------------------------------------

ATLAS = """
[tasks]
kind = "atlas"
worlds = 2
entities = 60

[rl]
tasks_per_step = 3
group_size = 4
learning_rate = 3e-4
epochs = 2
pack_tokens = 1024

[[rl.curriculum]]
steps = 2
objectives = [2]

[evaluation]
objectives = [1, 3]
tasks = 4
"""
MEMORIES = ("constant", "capped(30)", "fold(2)", "full", "masked", "window(2)", "summary(2)", "external(1)", "none")
ALGORITHMS = {
    "dr_grpo": (),
    "rloo": ("rl.epochs=1",),
    "reinforce": ("rl.epochs=1", "rl.algorithm.baseline=0.5"),
    "reinforce_pp": ("rl.algorithm.group_baseline=true",),
    "dapo": ("rl.algorithm.overlong.limit=60", "rl.algorithm.overlong.buffer=40"),
    "gspo": ("rl.algorithm.unit=turn",),
    "cispo": ("rl.old_logprobs_from=trainer", "rl.importance.level=token"),
    "rejection": ("rl.algorithm.threshold=1.0",),
}
RECIPES = {
    "rl": ATLAS,
    "ppo": ATLAS + '[rl.algorithm]\nname = "ppo"\ncritic = "head"\nlam = 0.95\n[rl.kl]\ncoefficient = 0.001\n',
    "ppo-separate": ATLAS
    + '[rl.algorithm]\nname = "ppo"\ncritic = "separate"\nvalue_clip = 0.2\n[rl.kl]\nwhere = "reward"\n',
    "from-nothing": """
[model.new]
look_back = [1, 2, 3]
[tasks]
kind = "atlas"
worlds = 2
entities = 60
[recall]
steps = 2
[sft]
steps = 3
objectives = [1, 2]
tasks = 20
tokens = 1024
pack_tokens = 1024
memories = ["constant", "full"]
cut_short = 0.2
[tasks.laziness]
diligent = 0.25
stop = 0.9
forget = 0.5
[evaluation]
objectives = [1]
tasks = 2
""",
    "multihop": """
[model.new]
tokenizer = "bpe"
vocab_size = 512
[tasks]
kind = "multihop"
questions = "questions.jsonl"
train_questions = "train.jsonl"
corpus = "passages.jsonl"
[budget]
completion_extra = 60
[sft]
steps = 2
objectives = [1, 2]
tasks = 6
tokens = 1024
[evaluation]
objectives = [2]
tasks = 3
""",
    "cloze": """
[tasks]
kind = "cloze"
corpus = "clozes"
[evaluation]
objectives = [1, 2]
tasks = 3
""",
    "shop": """
[model]
path = "shipped-shop"
[tasks]
kind = "webshop"
pages = "short"
prompt = "plain"
[budget]
completion_per_objective = 8
completion_extra = 48
[rl]
tasks_per_step = 2
group_size = 3
pack_tokens = 2048
[[rl.curriculum]]
steps = 1
objectives = [1]
[evaluation]
objectives = [1, 2]
tasks = 3
""",
    "web": """
[tasks]
kind = "web"
questions = "questions.jsonl"
api = "searxng"
cache = "web.sqlite"
seconds_between_searches = 0.0
[budget]
completion_per_objective = 0
completion_extra = 200
[evaluation]
objectives = [1, 2]
tasks = 3
""",
}


def train(recipe: str, *settings: str, ranks: int = 1) -> Command:
    """A run of a recipe and the evaluation at its end."""
    return Command(("train", f"{recipe}.toml", *settings, "--json"), run=True, ranks=ranks)


def evaluate(recipe: str, *settings: str, script: str | None = None) -> Command:
    """An evaluation; `script` is the answer of an agent that needs no model."""
    scripted = () if script is None else ("engine.kind=script", f"engine.answer={script}", "engine.tokenizer=stand-in")
    return Command(("eval", f"{recipe}.toml", *settings, *scripted, "--json"), run=True)


def memory(context: str) -> Command:
    """An evaluation of the shipped policy under a memory."""
    added = ('protocol.add=["summary"]',) if context.startswith("summary") else ()
    return evaluate("rl", f"memory={context}", *added)


def prints(*arguments: str) -> Command:
    """A command whose only result is the JSON that it prints."""
    return Command((*arguments, "--json"))


@dataclass(frozen=True)
class Command:
    """Arguments of `mem1`, and what they leave behind."""

    arguments: tuple[str, ...]
    run: bool = False
    """Whether it takes --out and leaves trajectories (and a training metrics and weights) there."""
    ranks: int = 1


SCRIPT = "Oslo; 1911"
COMMANDS: dict[str, Command] = {
    "train-rl": train("rl"),
    "train-ppo": train("ppo"),
    "train-ppo-separate-critic": train("ppo-separate"),
    "train-unpacked": train("rl", "rl.packed=false", "rl.minibatches=2", "rl.entropy=0.01"),
    "train-full-context": train("rl", "memory=full", "rl.kl.coefficient=0.01"),
    **{
        f"train-{name}": train("rl", f"rl.algorithm.name={name}", *more, "evaluation.objectives=[2]")
        for name, more in ALGORITHMS.items()
    },
    "train-two-ranks": train("rl", "evaluation.objectives=[2]", ranks=2),
    "train-ppo-two-ranks": train("ppo", "evaluation.objectives=[2]", ranks=2),
    "train-from-nothing": train("from-nothing"),
    "train-multihop": train("multihop"),
    "train-shop": train("shop"),
    **{f"eval-{context}": memory(context) for context in MEMORIES},
    "eval-warm": evaluate("rl", "evaluation.temperature=1.0", "evaluation.seed=3"),
    "eval-dependent": evaluate("rl", "tasks.composition=chain", "tasks.depth=2", "evaluation.objectives=[3]"),
    "eval-multihop": evaluate("multihop", script=SCRIPT),
    "eval-snippets": evaluate("multihop", "tasks.snippet_words=5", script=SCRIPT),
    "eval-shop": evaluate("shop"),
    "data-cloze": prints(
        *("data", "tasks.kind=cloze", "corpus=passages.jsonl", "--out", "clozes", "--json"),
        *("tasks.making.test=0.4", "tasks.making.development=0.3", "tasks.making.within=9"),
    ),
    "eval-cloze": evaluate("cloze", script=SCRIPT),
    "eval-web-live": evaluate("web", "tasks.api_url={site}", script=SCRIPT),
    "eval-web-replay": evaluate("web", "tasks.mode=replay", "tasks.api_url={site}", script=SCRIPT),
    "data-tasks": prints(
        "data", "multihop.toml", "--objectives", "2", "--limit", "9", "--out", "tasks.jsonl", "--json"
    ),
    "index": prints("index", "passages.jsonl", "--out", "index"),
    "run": prints("run", "--objectives", "3", "--seed", "5"),
    "verify": prints("verify", "rl.toml", "--limit", "2", "--attempts", "3"),
    "plan": prints("plan", "ppo.toml", "--gpus", "8xH100"),
    "dry-run": prints("train", "rl.toml", "--dry-run", "--out", "runs/dry"),
}
QUICKSTART = Command(("quickstart", "--json"), run=True)

# --- what it is run on -----------------------------------------------------------------------------------------------

_CITIES = ("Oslo", "Bergen", "Turin", "Ghent", "Malmo", "Porto", "Graz", "Basel", "Lodz", "Cork", "Brno", "Vigo")
_MAKERS = ("Alvex", "Norrin", "Castor", "Belmont", "Tessera", "Quillon", "Dravec", "Ostrava", "Hallam", "Verity")


def write_inputs(folder: Path) -> None:
    """Recipes, a small library of invented firms, and questions on it."""
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_text(text)
    passages, questions = [], []
    for i, maker in enumerate(_MAKERS * 3):
        name, city = f"{maker} {('Works', 'Mills', 'Press')[i // 10]}", _CITIES[i * 5 % 12]
        text = (
            f"{name} is a company in {city}. It was founded in {1880 + 7 * i} by Mira {maker} after a fire in {city}."
        )
        passages.append({"id": f"p{i}", "title": name, "text": text})
        for asked, answer in ((f"Where is {name}?", city), (f"When was {name} founded?", str(1880 + 7 * i))):
            questions.append({"id": f"q{len(questions)}", "question": asked, "answers": [answer]})
    write_lines(folder / "passages.jsonl", passages)
    write_lines(folder / "questions.jsonl", questions[:30])
    write_lines(folder / "train.jsonl", questions[30:])


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class _Searx(BaseHTTPRequestHandler):
    """A search engine that finds two pages for everything."""

    def do_GET(self) -> None:
        query = self.path.partition("q=")[2].partition("&")[0]
        results = [
            {
                "title": f"Page {i} on {query}",
                "url": f"https://example.org/{i}/{query}",
                "content": f"About {query}: {i}.",
            }
            for i in range(2)
        ]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def search_engine() -> Iterator[str]:
    """Address of a search engine on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Searx)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


# --- running ---------------------------------------------------------------------------------------------------------


def run(command: Command, name: str, site: str) -> dict[str, Any]:
    """{"json" | "metrics" | "trajectories" | "weights": what is digested of it}."""
    folder = Path("runs") / name
    arguments = [part.replace("{site}", site) for part in command.arguments]
    printed = _mem1([*arguments, *(["--out", str(folder)] if command.run else [])], ranks=command.ranks)
    found: dict[str, Any] = {"json": numbers(json.loads(printed))}
    if command.run:
        found["trajectories"] = [
            trajectory(json.loads(line))
            for path in sorted([*folder.glob("*-*.jsonl"), *folder.glob("evaluation/*.jsonl")])
            for line in path.read_text().splitlines()
        ]
        training = folder / "train" if (folder / "train").is_dir() else folder
        if (training / "metrics.jsonl").is_file():
            lines = (training / "metrics.jsonl").read_text().splitlines()
            found["metrics"] = [numbers(json.loads(line)) for line in lines]
            found["weights"] = sorted(weights(path) for path in (training / "policy").glob("*.safetensors"))
    return found


def _mem1(arguments: list[str], *, ranks: int) -> str:
    """What a command prints on stdout; in this process where there is one rank, so that torch is imported once."""
    if ranks > 1:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "mem1"]
        done = subprocess.run([*launch, *arguments], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"mem1 {' '.join(arguments)} on {ranks} ranks: exit code {done.returncode}\n{done.stderr[-3000:]}")
        return done.stdout
    printed, noted = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["mem1", *arguments]
    code: object = 0
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(noted):
            runpy.run_module("mem1", run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
    if code:
        sys.exit(
            f"mem1 {' '.join(arguments)}: exit code {code}\n{noted.getvalue()[-3000:]}\n{printed.getvalue()[-1000:]}"
        )
    return printed.getvalue()


# --- what is digested ------------------------------------------------------------------------------------------------


def numbers(value: Any, key: str = "") -> list[float]:
    """All numbers in a JSON value in sorted order, times left out.   {"a": 2, "seconds": 9, "b": [1, "x"]} -> [1, 2]"""
    if isinstance(value, dict):
        return sorted(n for k, v in value.items() for n in numbers(v, k))
    if isinstance(value, list):
        return sorted(n for v in value for n in numbers(v, key))
    if not isinstance(value, (bool, int, float)) or any(part in key for part in _TIMES):
        return []
    return [float(value)]


def trajectory(record: dict[str, Any]) -> dict[str, Any]:
    """What was said, sampled, seen and scored in a line of the trajectory files."""
    task = record["task"]
    return {
        "turns": [_turn(turn) for turn in record["turns"]],
        "scores": numbers([record["reward"], record["metrics"]]),
        "ended": record["ended"],
        "answer": record["answer"],
        "attempt": record["attempt"],
        "prompt": task["prompt"],
        "gold": [question["answers"] for question in task["questions"]],
    }


def _turn(turn: dict[str, Any]) -> list[Any]:
    content = "" if turn["action"] == "malformed" else turn["content"]
    exact = [turn[key] for key in ("context_ids", "completion_ids", "logprobs", "observation_ids")]
    return [*exact, *(turn[key] for key in ("text", "state", "action", "observation", "prefilled")), content]


def weights(path: Path) -> list[str]:
    """A digest per tensor of a safetensors file, in sorted order."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = [t for name, t in json.loads(data[8:start]).items() if name != "__metadata__"]
    return sorted(
        digest([t["dtype"], t["shape"], hashlib.sha256(data[start + a : start + b]).hexdigest()])
        for t in tensors
        for a, b in (t["data_offsets"],)
    )


def digest(value: Any) -> str:
    """A short digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def machine() -> dict[str, str]:
    """What the digests depend on besides the code."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"python": platform.python_version(), "torch": torch.__version__, "cpu": cpu}


def measure(names: Callable[[str], bool], *, quickstart: bool, keep: Path | None) -> dict[str, str]:
    """Digests of the commands whose names are wanted."""
    digests: dict[str, str] = {}
    commands = {**COMMANDS, **({"quickstart": QUICKSTART} if quickstart else {})}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, search_engine() as site:
        os.chdir(folder)
        os.environ["MEM1_CACHE"] = str(Path(folder) / "cache")
        try:
            write_inputs(Path(folder))
            for name, command in commands.items():
                if not names(name):
                    continue
                started = time.perf_counter()
                for what, value in run(command, name, site).items():
                    digests[f"{name}: {what}"] = digest(value)
                    if keep is not None:
                        (here / keep).mkdir(parents=True, exist_ok=True)
                        text = json.dumps(value, indent=1, sort_keys=True)
                        (here / keep / f"{name}-{what}.json").write_text(text)
                print(f"{time.perf_counter() - started:6.1f} s  {name}", file=sys.stderr, flush=True)
        finally:
            os.chdir(here)
    return digests


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the digests to this file")
    parser.add_argument("--compare", type=Path, help="print what differs from the digests in this file")
    parser.add_argument("--only", default="", help="commands whose name contains this, such as train-ppo")
    parser.add_argument("--keep", type=Path, help="folder for what was digested")
    parser.add_argument("--quickstart", action="store_true", help="the whole of `mem1 quickstart` too, some minutes")
    arguments = parser.parse_args()
    needed = ("data-cloze", "eval-web-live", "eval-constant")  # others read what these write
    digests = measure(
        lambda name: arguments.only in name or (bool(arguments.only) and name in needed),
        quickstart=arguments.quickstart,
        keep=arguments.keep,
    )
    if arguments.out is not None:
        text = json.dumps({"measured_with": machine(), "digests": digests}, indent=1)
        arguments.out.write_text(text + "\n")
    if arguments.compare is None:
        return
    before = json.loads(arguments.compare.read_text())
    if before["measured_with"] != machine():
        print(f"measured on another machine: {before['measured_with']}, here {machine()}")
    differing = [name for name, value in digests.items() if before["digests"].get(name) != value]
    for name in differing:
        print(f"differs: {name}" if name in before["digests"] else f"not in {arguments.compare}: {name}")
    print(f"{len(digests) - len(differing)} of {len(digests)} digests are equal")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
