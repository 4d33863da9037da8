"""Commands of the published run that need a GPU, a network or hours, played by small ones: see test_published_run.py.

python3 -m venv FOLDER      a folder whose bin holds these stand-ins
pip                         nothing
git clone ... FOLDER        the scripts of MEM1 and Search-R1 that hold prompts
hf download REPO            copies what $STAND_INS has of the repository
vllm serve                  mem1 serve-policy
python retrieval_server.py  mem1 serve-retriever
torchrun                    one process
mem1 train, mem1 eval       the real ones, with small numbers
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

COMMANDS = ("hf", "mem1", "pip", "python", "torchrun", "vllm")
SMALL = ["budget.completion_extra=16", "budget.context=4096", "tasks.passage_words=10"]
TRAINING = [
    *SMALL,
    "rl.curriculum=[{ steps = 1, objectives = [2] }]",
    "rl.tasks_per_step=2",
    "rl.pack_tokens=4096",
    "rollout.kind=mem1",
    "model.device=cpu",
]


def write_commands(folder: Path, names: tuple[str, ...] = COMMANDS) -> None:
    """Executable files that call `play`."""
    folder.mkdir(parents=True)
    for name in names:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        script.chmod(0o755)


def play(name: str, arguments: list[str]) -> None:
    """Do what the stand-in of a command does."""
    if name == "python3":
        write_commands(Path(arguments[2]) / "bin")
    elif name == "git" and arguments[-1] == "mem1-release":
        scripts = Path("mem1-release", "Mem1", "gen_data", "data_process")
        scripts.mkdir(parents=True)
        (scripts / "qa_search_train_merge_multi.py").write_text('f"""Use <think> </think>.\\nAnswer: {questions}\\n"""')
        (scripts / "webshop.py").write_text('env_instruction = "Shop."\nresponse_instruction = "{user_instruction}"\n')
    elif name == "git" and arguments[-1] == "search-r1":
        scripts = Path("search-r1", "scripts", "data_process")
        scripts.mkdir(parents=True)
        (scripts / "nq_search.py").write_text('f"""Use <search> </search>. Question: {question}\n"""')
    elif name == "hf":
        _copy(arguments)
    elif name == "vllm":
        port = arguments[arguments.index("--port") + 1]
        Path("runs/weights").mkdir(parents=True, exist_ok=True)
        _mem1("serve-policy", arguments[1], "--port", port, "--weights-folder", "runs/weights", "--device", "cpu")
    elif name == "python" and arguments[0].endswith("retrieval_server.py"):
        corpus = arguments[arguments.index("--corpus_path") + 1]
        _mem1("serve-retriever", corpus, "--port", os.environ["SEARCH_PORT"], "--workers", "1")
    elif name == "python":
        os.execv(sys.executable, [sys.executable, *arguments])
    elif name == "torchrun":
        play("mem1", arguments[arguments.index("mem1") + 1 :])
    elif name == "mem1":
        more = {"train": TRAINING, "eval": SMALL}.get(arguments[0], [])
        _mem1(*arguments, *more)


def _copy(arguments: list[str]) -> None:
    repository, target = arguments[1], Path(arguments[arguments.index("--local-dir") + 1])
    source = Path(os.environ["STAND_INS"]) / repository
    assert source.is_dir(), f"no stand-in for {repository}"
    shutil.copytree(source, target, dirs_exist_ok=True)


def _mem1(*arguments: str) -> None:
    os.execv(sys.executable, [sys.executable, "-m", "mem1", *arguments])


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2:])
