"""`mem1 verify`, `mem1 run` and `mem1 report`, as they are called."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import TOWNS
from rich.console import Console
from servers import in_a_thread
from typer.testing import CliRunner

from mem1.cli.main import app
from mem1.cli.run import LONGEST, LiveView, shown
from mem1.configuration import load_toml
from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.envs.base import TaskSource
from mem1.errors import UserError
from mem1.evaluation.report.rows import read_evaluations
from mem1.evaluation.report.run_folders import facts, read_runs, run_names, write_run_report
from mem1.evaluation.tokens import appended_tokens
from mem1.memory import memory_policy
from mem1.policy.folders import SHIPPED_SHOP, policy_folder
from mem1.policy.policy import Policy
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import atlas_tokenizer, bpe_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.model import TinyModel
from mem1.recipe.recipe import Recipe
from mem1.records import Task, Trajectory
from mem1.retrieval import BM25
from mem1.rollout import Rollout
from mem1.run_folder import RunFolder
from mem1.tasks.atlas import Expert, Laziness
from mem1.tasks.datasets import write_passages
from mem1.training.monitoring.metrics_log import MetricsLog
from mem1.trajectory_files import write_trajectories

CODEC = Codec(atlas_tokenizer(PAPER))
QUICK = ["--limit", "1", "--attempts", "2"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """A folder with a small policy that knows nothing."""
    folder = tmp_path_factory.mktemp("policy")
    shape = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
    Policy(new_model(shape, vocab_size=CODEC.vocab_size, seed=0), CODEC).save(folder)
    return folder


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Path:
    """The same with a tokenizer for any text."""
    folder = tmp_path_factory.mktemp("reader")
    codec = Codec(bpe_tokenizer(["the capital of Norway"], vocab_size=300, tags=PAPER))
    shape = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
    Policy(new_model(shape, vocab_size=codec.vocab_size, seed=0), codec).save(folder)
    return folder


@pytest.fixture(scope="module")
def source() -> TaskSource:
    return AtlasTasks(entities=60, worlds=1, questions_per_world=60).source("evaluation", PAPER)


def call(*arguments: object):
    """The command's result; an error of the user is raised, as main() prints it."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def attempts(source: TaskSource, objectives: int, laziness: Laziness, context: str = "constant") -> list[Trajectory]:
    rollout = Rollout(
        engine=ScriptedEngine(CODEC, Expert(tags=PAPER, laziness=laziness)),
        dialogue=TagDialogue(CODEC),
        environment=source.environment,
        context=memory_policy(context),
    )
    return rollout(source.tasks(objectives=objectives, count=3, seed=0), sampling=Sampling())


class TestVerify:
    def test_prints_every_check_with_its_verdict(self, policy):
        result = call("verify", "--model", policy, *QUICK, "--json")
        assert result.exit_code == 0
        printed = json.loads(result.stdout)
        assert printed["passed"] is True and printed["trajectories"] == 2
        assert printed["steered"] is True and printed["turns"] == 8, "a model that knows no tag makes four turns too"
        checks = {check["name"]: check for check in printed["checks"]}
        assert {"causality", "ppo: more contexts"} < set(checks)
        assert checks["sampler and trainer, largest"]["limit"] == 1e-4
        assert checks["packed log-probs, float64"]["limit"] == 1e-5
        assert checks["packed log-probs, float64"]["compared"] == printed["sampled_tokens"] > 0
        assert {check["verdict"] for check in checks.values()} == {"passed"}
        assert checks["re-encoded tokens"]["compared"] > 0

    def test_a_trained_policy_passes_though_its_gradients_are_small(self):
        result = call("verify", "atlas-quick", "model.attention=blocks", "--limit", 1, "--attempts", 3, "--json")
        failed = {c["name"]: c["measured"] for c in json.loads(result.stdout)["checks"] if c["verdict"] == "failed"}
        assert failed == {} and result.exit_code == 0

    def test_exit_code_1_where_a_check_fails_and_the_table_fits_80_columns(self, policy, monkeypatch):
        monkeypatch.setattr("mem1.training.checks.SAMPLER_LIMIT", -1.0)  # which nothing can meet
        result = call("verify", "--model", policy, *QUICK, "memory=fold(3)")
        assert result.exit_code == 1
        table, explanation = result.stdout.split("sampler and trainer, largest: ")
        assert "causality" in table and "memory fold(3)" in table and "failed" in table
        assert max(map(len, table.splitlines())) <= 80
        assert explanation.startswith("difference between a token's log-prob")
        assert "Not exact: failed: sampler and trainer, largest" in explanation.splitlines()[-1]

    def test_exit_code_1_where_a_check_cannot_be_made(self, policy):
        result = call("verify", "--model", policy, "--limit", 1, "--attempts", 1)
        assert result.exit_code == 1
        assert "not tested" in result.stdout and "Not tested is not passed" in result.stdout
        assert result.stdout.splitlines()[-1].startswith("Not shown to be exact: not tested: ")

    def test_says_what_it_does_and_ends_with_a_verdict(self, policy):
        result = call("verify", "--model", policy, *QUICK)
        assert result.stdout.splitlines()[-1] == "Exact: every check passed; the trainer sees what the sampler saw."
        said = result.stderr.splitlines()
        assert "sampling 2 attempts ..." in said and "computing packed, float64 ..." in said

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["memory=half"], "unknown memory 'half'"),
            (["tasks.kind=chess"], "chess"),
            (["tasks.kind=multihop"], r"required key tasks\.questions is missing"),
            (["engine.kind=script", "engine.answer=x"], "the model runs in this process"),
        ],
    )
    def test_mistakes_are_explained(self, policy, options, message):
        with pytest.raises(UserError, match=message):
            call("verify", "--model", policy, *options)


class TestRun:
    def test_an_atlas_task_is_drawn_and_scored(self, policy):
        printed = json.loads(call("run", "--model", policy, "--objectives", 2, "--json").stdout)
        assert [answer["question"] for answer in printed["answers"]] == [1, 2]
        assert all(set(answer) == {"question", "text", "answer", "em", "gold"} for answer in printed["answers"])
        assert printed["peak_tokens"] == max(turn["tokens"] for turn in printed["turns"])

    def test_notes_and_the_labels_of_a_task_are_shown(self):
        shown_, record = (call("run", "atlas-notes", "--objectives", 2, *more).stdout for more in ((), ("--json",)))
        told = json.loads(record)
        labels = [answer["question"] for answer in told["answers"]]
        notes = [note for turn in told["turns"] for note in turn["notes"]]
        assert labels != [1, 2] and shown_.count(f"\nQ{labels[1]} ") == 2, "its question and its answer"
        assert notes and all(f"  note       {note}" in shown_ for note in notes)

    def test_alone_it_shows_the_policy_that_quickstart_trained_and_before_that_the_shipped_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        shipped = call("run")
        assert "policy: shipped-notes\n" in shipped.stdout and "\nQ8 " not in shipped.stdout, "labels skip numbers"
        told = json.loads(call("run", "atlas-notes", "--json").stdout)
        assert len(told["answers"]) == 8 and told["appended_peak_tokens"] > 3 * told["peak_tokens"]
        assert sum(answer["em"] for answer in told["answers"]) >= 3
        for number, name in enumerate(("quickstart-seed0", "quickstart-fold(3)-seed1")):
            train = tmp_path / "runs" / name / "train"
            shutil.copytree(policy_folder("shipped"), train / "policy")
            os.utime(train / "policy", (number, number))
            (train / "config.toml").write_text('memory = "fold(3)"\n[tasks]\nkind = "atlas"\nworlds = 1\n')
        assert f"policy: {Path('runs') / name / 'train' / 'policy'}\n" in call("run", "--objectives", 2).stdout

    def test_ones_own_questions_are_searched_in_ones_own_passages_and_not_scored(self, reader, tmp_path, monkeypatch):
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
        write_passages(tmp_path / "towns.jsonl", TOWNS)
        options = ["--question", "What is the capital of Norway?", "--corpus", tmp_path / "towns.jsonl"]
        limits = ["tasks.turn_limit.per_objective=1", "tasks.turn_limit.extra=1", "budget.completion_extra=20"]
        printed = json.loads(call("run", "--model", reader, *options, *limits, "--json").stdout)
        assert set(printed["answers"][0]) == {"question", "text", "answer"}
        assert "not known" not in json.dumps(printed)
        shown_live = call("run", "--model", reader, *options, *limits).stdout
        assert "Q1 What is the capital of Norway?" in shown_live and "turn 1" in shown_live

    def test_ones_own_questions_are_searched_on_a_server(self, reader):
        with in_a_thread(BM25.build(TOWNS)) as address:
            options = [f'tasks.retriever.urls=["{address}"]', "budget.completion_extra=20", "--json"]
            result = call("run", "--model", reader, "--question", "Who?", *options)
        assert json.loads(result.stdout)["answers"][0]["text"] == "Who?"

    def test_a_question_without_passages_and_passages_without_a_question_are_refused(self, policy):
        with pytest.raises(UserError, match="--question needs something to search"):
            call("run", "--model", policy, "--question", "Who?")
        with pytest.raises(UserError, match="--corpus needs questions about it"):
            call("run", "--model", policy, "--corpus", "a.jsonl")
        with pytest.raises(UserError, match="--question is empty"):
            call("run", "--model", policy, "--question", " ", "--corpus", "a.jsonl")
        with pytest.raises(UserError, match=r"leave out evaluation\.objectives"):
            call("run", "--question", "Who?", "--corpus", "a.jsonl", "--objectives", 3)

    @pytest.mark.parametrize("turn_limit", [9, 3])
    def test_each_turn_is_shown_with_what_is_in_view_and_what_appending_would_hold(self, source, turn_limit):
        """A limit of 3 turns forces the last answer."""
        (task,) = source.tasks(objectives=2, count=1, seed=2)
        task = Task(id=task.id, questions=task.questions, prompt=task.prompt, turn_limit=turn_limit, corpus=task.corpus)
        screen = Console(file=io.StringIO(), width=300, highlight=False)
        engine = ScriptedEngine(CODEC, Expert(tags=PAPER))
        rollout = Rollout(
            engine=engine,
            dialogue=TagDialogue(CODEC),
            environment=source.environment,
            context=memory_policy("constant"),
            on_turn=LiveView(PAPER, screen),
        )
        (done,) = rollout([task], sampling=Sampling())
        assert len(done.turns) >= 3 and done.turns[-1].prefilled == (turn_limit == 3)
        assert isinstance(screen.file, io.StringIO)
        printed = screen.file.getvalue()
        for number, (turn, appended) in enumerate(zip(done.turns, appended_tokens(done), strict=True), start=1):
            assert f"turn {number}  {turn.num_tokens} tokens in view; with every turn appended {appended}\n" in printed
            assert turn.content in printed
            assert shown(turn.observation) in printed
        assert appended_tokens(done)[-1] > done.turns[-1].num_tokens

    def test_control_characters_never_reach_the_terminal_and_long_texts_are_cut(self):
        assert shown("a\x1b[31m b\r\nc") == "a [31m b c"
        assert shown("x" * (LONGEST + 1)) == "x" * LONGEST + " ..."


RECIPE = """
[tasks]
kind = "atlas"

[sft]
steps = 3

[rl]
curriculum = [{ steps = 2, objectives = [2] }]
"""


def make_run(
    folder: Path, training: Path, source: TaskSource, sizes: tuple[int, ...], *, override: str = "seed=7"
) -> Path:
    """A run as the commands write it: base is lazy, trained is not."""
    (folder.parent / "recipe.toml").write_text(RECIPE)
    config = load_toml(folder.parent / "recipe.toml", Recipe, [override])
    RunFolder.create(training, config, command=["mem1", "quickstart", "--seed", "7"])
    with MetricsLog(training) as log:
        log.append(1, {"loss": 2.5})
        for step in (2, 3):
            log.append(step, {"reward": 0.5})
    (training / "policy").mkdir()
    CODEC.tokenizer.save(str(training / "policy" / "tokenizer.json"))
    (folder / "evaluation").mkdir()
    for size in sizes:
        for name, laziness in (("trained", Laziness()), ("base", Laziness(stop=1.0, shortcut=1.0))):
            write_trajectories(folder / "evaluation" / f"{name}-{size}.jsonl", attempts(source, size, laziness))
    return folder


def texts(page: Path) -> str:
    """The viewer's data of a page."""
    (packed,) = re.findall(r'id="data">([^<]*)<', page.read_text())
    return gzip.decompress(base64.b64decode(packed)).decode()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, source: TaskSource) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    return make_run(folder, folder, source, sizes=(1,))


class TestReport:
    def test_the_page_of_a_quickstart_is_written_again_from_its_folder(self, tmp_path, source):
        run = make_run(tmp_path / "run", tmp_path / "run" / "train", source, sizes=(1, 2))
        result = call("report", run)
        assert result.stdout.strip() == str(run / "report.html")
        page = (run / "report.html").read_text()
        assert "reward per task" in page and "peak tokens" in page and "mem1 quickstart --seed 7" in page
        data = json.loads(texts(run / "report.html"))
        assert [(g["name"], g["objectives"]) for g in data["groups"]] == [
            ("base", 1), ("base", 2), ("trained", 1), ("trained", 2),
        ]  # fmt: skip
        assert len(data["trajectories"]) == 12
        assert "<query>" in "".join(data["strings"]), "tokens are shown as text"

    def test_base_comes_first_and_trained_last_each_by_rising_n(self, tmp_path, source):
        run = make_run(tmp_path / "run", tmp_path / "run", source, sizes=(2, 10, 1))
        found = read_evaluations(run / "evaluation")
        assert [(attempts.row.policy, attempts.row.objectives) for attempts in found] == [
            ("base", 1), ("base", 2), ("base", 10), ("trained", 1), ("trained", 2), ("trained", 10),
        ]  # fmt: skip

    def test_policies_with_names_of_their_own_stand_in_the_order_of_their_evaluation(self, tmp_path, source):
        run = make_run(tmp_path / "run", tmp_path / "run", source, sizes=(1,))
        folder = run / "evaluation"
        for old, new in (("base", "shipped"), ("trained", "policy")):
            for file in list(folder.glob(f"{old}-1*")):
                file.rename(folder / file.name.replace(old, new))
        (folder / "resolved.json").write_text(json.dumps({"evaluations": {"shipped": {}, "policy": {}}}))
        assert [attempts.row.policy for attempts in read_evaluations(folder)] == ["shipped", "policy"]

    def test_a_task_that_was_tried_again_counts_once_and_a_cut_line_not_at_all(self, tmp_path, source):
        run = make_run(tmp_path / "run", tmp_path / "run", source, sizes=(2,))
        (file,) = (run / "evaluation").glob("trained-2.jsonl")
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join([*lines, lines[0], lines[1][:40]]))
        trained = read_evaluations(run / "evaluation")[-1]
        assert trained.row.tasks == len(trained.trajectories) == len(lines)

    def test_several_runs_have_one_page_and_seeds_of_one_recipe_are_a_family(self, tmp_path, source):
        runs = []
        for name, override in (("q-seed0", "seed=0"), ("q-seed1", "seed=1"), ("longer", "sft.steps=4")):
            (tmp_path / name).mkdir()
            run = make_run(tmp_path / name / "r", tmp_path / name / "r" / "train", source, (1,), override=override)
            runs.append(run.rename(tmp_path / name / name))
        assert [(run.name, run.family) for run in read_runs(runs)] == [
            ("q-seed0", "q"), ("q-seed1", "q"), ("longer", "longer"),
        ]  # fmt: skip
        call("report", *runs, "--out", tmp_path / "all.html")
        page = (tmp_path / "all.html").read_text()
        assert "mean of 2 runs" in page and "q-seed0, q-seed1, longer" in page
        with pytest.raises(UserError, match="given twice"):
            call("report", runs[0], runs[0])

    def test_runs_of_one_name_are_told_apart_by_the_folders_above(self):
        assert run_names([Path("a/x/run"), Path("b/x/run")]) == ["a/x/run", "b/x/run"]
        assert run_names([Path("a/run"), Path("a/other")]) == ["run", "other"]

    @pytest.mark.parametrize(("format", "start"), [("md", "| policy |"), ("csv", "policy,context,")])
    def test_the_table_for_a_paper_is_printed_or_written(self, tmp_path, run, format, start):
        printed = call("report", run, "--format", format).stdout
        assert printed.startswith(start) and "trained" in printed
        assert not (run / "report.html").exists()
        table = tmp_path / "new" / "t"
        assert call("report", run, "--format", format, "--out", table).stdout.strip() == str(table)
        assert table.read_text() == printed
        with pytest.raises(UserError, match="its folder cannot be made"):
            call("report", run, "--format", format, "--out", table / "t")

    def test_an_unknown_format_is_refused_with_the_known_ones(self, tmp_path):
        with pytest.raises(UserError, match="unknown format 'pdf'; known: html, md, csv"):
            call("report", tmp_path, "--format", "pdf")

    def test_an_evaluation_alone_is_shown_with_the_shipped_tokenizer_that_fits_or_the_given_one(self, tmp_path, source):
        done = attempts(source, 2, Laziness())
        write_trajectories(tmp_path / "shipped-2.jsonl", done)
        call("report", tmp_path)
        assert "<query>" in texts(tmp_path / "report.html")
        other = [replace(t, turns=tuple(replace(turn, text=f"{turn.text}!") for turn in t.turns)) for t in done]
        write_trajectories(tmp_path / "shipped-2.jsonl", other)
        with pytest.raises(UserError, match=r"are not those of .*atlas-warm-start or .*; give .*--tokenizer FOLDER"):
            call("report", tmp_path)

    def test_policies_of_an_evaluation_are_each_shown_by_the_tokenizer_that_made_them(self, tmp_path):
        out = tmp_path / "e"
        call("eval", "--limit", "1", "--objectives", "1", "--out", out)
        call("eval", "atlas-notes", "--limit", "1", "--objectives", "1", "--out", out)
        scripted = ["engine.kind=script", "engine.answer=Oslo", "--tokenizer", "stand-in"]
        call("eval", *scripted, "--limit", "1", "--objectives", "1", "--out", out)
        assert call("report", out, "--format", "csv").stdout.count("\n") == 4
        call("report", out)
        shown = texts(out / "report.html")
        assert "Oslo" in shown and "<note>" in shown

    def test_a_table_needs_no_tokenizer(self, tmp_path, source):
        done = attempts(source, 2, Laziness())
        other = [replace(t, turns=tuple(replace(turn, text=f"{turn.text}!") for turn in t.turns)) for t in done]
        write_trajectories(tmp_path / "mine-2.jsonl", other)
        assert "mine" in call("report", tmp_path, "--format", "md").stdout

    def test_a_tokenizer_that_does_not_make_the_recorded_text_is_refused(self, run):
        with pytest.raises(UserError, match="its recorded tokens are not those of"):
            call("report", run, "--tokenizer", policy_folder(SHIPPED_SHOP))

    def test_the_facts_are_those_of_the_run(self, tmp_path, source):
        run = make_run(tmp_path / "run", tmp_path / "run" / "train", source, sizes=())
        found = facts(run / "train")
        versions, hardware = found.pop("versions"), found.pop("hardware")
        assert hardware.endswith(f", {os.cpu_count()} cores")
        assert versions.startswith("mem1 0.") and ", python 3." in versions
        assert found == {
            "command": "mem1 quickstart --seed 7",
            "seed": "7",
            "memory": "constant",
            "tasks": "atlas",
            "training": "sft, 3 steps; rl, 2 steps on N = 2 (12 tasks, 8 attempts at each, a step)",
        }

    def test_a_training_that_was_not_evaluated_shows_its_curve_and_one_without_rl_none(self, tmp_path, source):
        run = make_run(tmp_path / "run", tmp_path / "run", source, sizes=())
        assert "reward per task" in write_run_report(run).read_text()
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
        assert "reward per task" not in write_run_report(run).read_text()

    def test_what_is_no_run_or_holds_nothing_is_refused(self, tmp_path, source):
        with pytest.raises(UserError, match="has nothing to report"):
            call("report", tmp_path)
        run = make_run(tmp_path / "run", tmp_path / "run", source, sizes=())
        (run / "metrics.jsonl").unlink()
        with pytest.raises(UserError, match="has nothing to report"):
            call("report", run)
