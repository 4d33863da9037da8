"""The recipe's published-run.md: each command of the page is the script's, and the script runs with small stand-ins."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import socket
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from builders import chat_folder
from stand_ins import write_commands

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes" / "qwen2.5-7b-multihop" / "run.sh"
PAGE = SCRIPT.with_name("published-run.md")
DATA = ROOT.parent / "shared" / "data" / "qa"
SEARCH_R1 = "PeterJinGo/SearchR1-nq_hotpotqa_train-qwen2.5-7b-em-ppo"


def script(*arguments: str, folder: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "".join(p.read_text()[-2000:] for p in (folder or Path()).glob("logs/*.log")) if folder else ""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


def printed(**environment: str) -> list[str]:
    """The commands of a dry run."""
    said = script("--dry-run", SOURCE="./mem1", **environment)  # type: ignore[arg-type]
    return [line for line in said.splitlines() if line[0] != "#"]


def of_the_page() -> list[str]:
    """The commands of the page's code blocks, each on one line, without comments and calls of the script itself."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.join(shlex.split(line, comments=True)) for line in lines]
    return [command for command in commands if command and "run.sh" not in command]


def test_the_page_has_the_commands_of_the_script_and_no_others():
    of_the_script = {
        shlex.join(shlex.split(line)) for gpus in ("1", "4", "8") for line in printed(GPUS=gpus, SIZES="16")
    }
    shown = of_the_page()
    assert [command for command in shown if command not in of_the_script] == []
    missing = {shlex.join(shlex.split(line)) for line in printed(GPUS="8", SIZES="16")} - set(shown)
    assert missing == set()


def test_a_wrong_stage_or_number_of_gpus_is_explained():
    for arguments, gpus, why in ((["fly"], "8", "unknown stage fly; known: install"), ([], "3", "knows 1, 4 and 8")):
        command, environment = ["bash", str(SCRIPT), *arguments], {**os.environ, "GPUS": gpus}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, why in done.stderr, done.stdout) == (1, True, "")


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def stand_ins(folder: Path) -> None:
    """What the stand-in of `hf download` knows: a model, questions and passages."""
    for model in ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", SEARCH_R1, "intfloat/e5-base-v2"):
        chat_folder(folder / model)
    with gzip.open(DATA / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        passages = [json.loads(line) for line in islice(lines, 300)]
    wiki = folder / "PeterJinGo" / "wiki-18-corpus"
    wiki.mkdir(parents=True)
    with gzip.open(wiki / "wiki-18.jsonl.gz", "wt", encoding="utf-8") as out:
        for passage in passages:
            contents = f'"{passage["title"]}"\n{passage["text"]}'
            out.write(json.dumps({"id": passage["id"], "contents": contents}) + "\n")
    index = folder / "PeterJinGo" / "wiki-18-e5-index"
    index.mkdir()
    for part in ("part_aa", "part_ab"):
        (index / part).write_text(part)
    for number, name in enumerate(("nq/train", "nq/test", "hotpotqa/train", "hotpotqa/dev")):
        path = folder / "RUC-NLPIR" / "FlashRAG_datasets" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"id": f"{name}-{i}", "question": f"who wrote book {number} {i}", "golden_answers": [f"author {i}"]}
            for i in range(50)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_the_script_goes_from_an_empty_machine_to_the_table(tmp_path: Path):
    stand_ins(tmp_path / "stand-ins")
    write_commands(tmp_path / "bin", ("git", "python3"))
    work = tmp_path / "work"
    work.mkdir()
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "STAND_INS": str(tmp_path / "stand-ins"),
        "GPUS": "4",
        "SIZES": "1 2",
        "LIMIT": "2",
        "SEARCH_PORT": free_port(),
        "POLICY_PORT": free_port(),
    }
    shown = script(folder=work, **environment)
    assert (work / "wiki" / "e5_Flat.index").read_text() == "part_aapart_ab"
    assert (work / "runs" / "published" / "policy").is_dir()
    for system in ("mem1", "full-context", "truncated", "search-r1"):
        assert len(list((work / "results" / system).glob("*.row.json"))) == 2
    assert "| mem1 |" in shown and "| MEM1, published |" in shown
    assert (work / "results" / "figure.svg").stat().st_size > 1000
    again = script(folder=work, **environment)
    assert again.count("done already") == 8
