"""Ctrl-C in each phase of each long command: nothing more is done; one line says where it stopped and how to go on."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from samples import write_lines
from terminals import Terminal
from terminals import recipe as recipe
from terminals import terminal as terminal

from mem1.engines import workers
from mem1.run_folder import read_metrics

SENTENCES = "The firm Alvex was founded by Mira Toll of {} in {} with some help of her old friend Jon Berg of Oslo ."


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = [SENTENCES.format(f"Stad{chr(97 + i)}", 1900 + i) for i in range(20)]
    write_lines(
        tmp_path / "corpus.jsonl", *({"id": str(i), "title": f"Doc{i}", "text": t} for i, t in enumerate(texts))
    )
    return tmp_path / "corpus.jsonl"


ANEW = "begin again with the same command"
CLOZES = "data tasks.kind=cloze corpus={corpus} --out {out}"
PHASES = {
    "clozes": ("mem1.envs.cloze.make_clozes", CLOZES, f"while making clozes; {ANEW}"),
    "candidates": ("mem1.tasks.cloze.making.of_passage", CLOZES, "while making clozes"),
    "indexing": ("mem1.retrieval.bm25.Numbers.of_text", "index {corpus} --out {out}", f"while indexing; {ANEW}"),
    "making a policy": (
        "mem1.training.train.make_policy",
        "train {recipe} --out {out}",
        "saving; begin again with: mem1",
    ),
    "demonstrations": (
        "mem1.rollout.Rollout._take",
        "train {recipe} --out {out}",
        "while making demonstrations, with a",
    ),
    "sampling": (
        "mem1.engines.local.Batch.step",
        "train {recipe} --out {out}",
        "step 1 of 1 of [rl], with a",
    ),
    "two workers": (
        "mem1.engines.local.Batch.step",
        "train {recipe} workers=2 --out {out}",
        "step 1 of 1 of [rl], with a",
    ),
    "its evaluation": (
        "mem1.evaluation.runner._Size.add",
        "train {recipe} evaluation.objectives=[1] --out {out}",
        "3 of 3 attempts are done and saved in {out}/evaluation; resume with: mem1 train",
    ),
    "evaluation": (
        "mem1.rollout.Rollout._take",
        "eval --limit 3 --objectives 1 tasks.worlds=1 --out {out}",
        "while evaluating; 0 of 3 attempts are done and saved in {out}; repeat the command",
    ),
    "without a folder": ("mem1.rollout.Rollout._take", "eval --limit 3 --objectives 1 tasks.worlds=1", ANEW),
    "bench": (
        "mem1.rollout.Rollout._take",
        "bench --script unlimited --out {out}",
        "while attempting tasks; 0 of ",
    ),
    "probe": ("mem1.extras.probe.exam.Text", "probe full --count 2 --exchanges 20", f"while probing; {ANEW}"),
    "verify": (
        "mem1.engines.local.Batch.step",
        "verify --limit 1 --objectives 1 tasks.worlds=1",
        f"while verifying; {ANEW}",
    ),
    "quickstart": (
        "mem1.engines.local.Batch.step",
        "quickstart --out {out}",
        "while evaluating; 0 of ",
    ),
}


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=pytest.mark.slow if phase == "two workers" else ()) for phase in PHASES]
)
def test_nothing_more_is_done_and_one_line_says_where_it_stopped_and_what_to_do(
    phase: str,
    terminal: Terminal,
    recipe: Path,
    corpus: Path,
    tmp_path: Path,
    ctrl_c,
):
    function, command, expected = PHASES[phase]
    places = {"corpus": corpus, "recipe": recipe, "out": tmp_path / "out"}
    calls = ctrl_c(function)
    code, printed, said = terminal(*command.format(**places).split(" "))
    assert (code, printed, calls) == (130, "", [1])
    assert not any(helper.process.is_alive() for helper in workers._HELPERS) or phase != "two workers"
    stopped = [line for line in said.splitlines() if line.startswith("Stopped")]
    assert said.splitlines()[-1:] == stopped
    assert expected.format(**places) in stopped[0]


def test_the_command_that_it_names_goes_on_to_the_metrics_of_an_unbroken_run(
    terminal: Terminal,
    recipe: Path,
    tmp_path: Path,
    ctrl_c,
    monkeypatch: pytest.MonkeyPatch,
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train = ("train", recipe, "rl.learning_rate=2e-4", "sft.steps=3")
    assert terminal(*train, "--out", whole)[0] == 0
    words: list[str] = [*map(str, train), "--out", str(parts)]
    for function, call in (
        ("mem1.rollout.Rollout._take", 2),
        ("mem1.training.gradients.pack_workers.PackWorkers.backward", 2),
        ("mem1.engines.local.Batch.step", 2),
        ("mem1.evaluation.runner._Size.add", 2),
    ):
        with monkeypatch.context():
            ctrl_c(function, call)
            code, _, said = terminal(*words)
        monkeypatch.undo()
        assert code == 130, said
        words = shlex.split(said.splitlines()[-1].partition("resume with: mem1 ")[2])
    code, _, said = terminal(*words)
    assert code == 0, said
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert [row["step"] for row in read_metrics(parts / "metrics.jsonl")] == [1, 2, 3, 4]
    one, other = (json.loads((out / "result.json").read_text()) for out in (whole, parts))
    assert [row["em"] for row in one["rows"]] == [row["em"] for row in other["rows"]]
