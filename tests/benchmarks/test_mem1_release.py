"""The recipe of the released checkpoint and the commands that use a model server, against a server without faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from corpora import TOWNS
from model_servers import Model, model_site
from released import call
from samples import write_lines
from servers import in_a_thread
from sites import Site
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from mem1.dialogue import TagDialogue
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import RELEASED
from mem1.recipe.supervised import Sft
from mem1.records import Ended
from mem1.retrieval import BM25
from mem1.training.recorded import read_recorded
from mem1.trajectory_files import read_trajectories

RECIPE = Path(__file__).parents[2] / "benchmarks" / "mem1_release.toml"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CAPITALS = {"Norway": "Oslo", "Sweden": "Stockholm"}
QUESTIONS = [
    {"id": country, "text": f"What is the capital of {country}?", "answers": [city]}
    for country, city in CAPITALS.items()
]


def released_agent(context: str) -> str:
    """What the checkpoint would write: it searches the last question, then answers all from its state."""
    asked = context.split("Answer the following questions: ")[-1].split("<|im_end|>")[0].split("?")[:-1]
    countries = [question.split()[-1] for question in asked]
    if "[HINT] You have" not in context:
        return f"<think> nothing yet </think> <search> capital of {countries[-1]} </search>"
    answers = "; ".join(CAPITALS[country] for country in countries)
    return f"<think> {answers} </think> <answer> {answers} </answer>"


@dataclass(frozen=True)
class Served:
    site: Site
    model: Model
    tokenizer: Path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the checkpoint's: tags are ordinary text, the chat's marks are special tokens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer.from_str(bpe_tokenizer(["What is the capital of Norway?"], vocab_size=300, tags=RELEASED).to_str())
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("<|im_start|>", "<|im_end|>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=TEMPLATE)
    fast.save_pretrained(str(folder))
    return folder


@pytest.fixture
def served(tokenizer: Path) -> Iterator[Served]:
    model = Model(Codec.load(tokenizer), released_agent, vllm=True)
    with model_site(model) as site:
        yield Served(site, model, tokenizer)


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The recipe's tasks over a small collection."""
    questions = write_lines(tmp_path / "questions.jsonl", *QUESTIONS)
    with in_a_thread(BM25.build(TOWNS)) as address:
        yield (f"tasks.questions={questions}", f'tasks.retriever.urls=["{address}"]')


def recipe(served: Served, sources: tuple[str, ...], *more: object):
    fixed = (RECIPE, *sources, "--limit", 3, "--objectives", "1,2")
    return call("eval", *fixed, "--base-url", served.site.url, *more)


def test_the_recipe_of_the_released_checkpoint_runs_and_scores(served, sources, tmp_path):
    options = ("--tokenizer", served.tokenizer, "protocol.kind=framed", "--out", tmp_path / "out", "--json")
    rows = json.loads(recipe(served, sources, *options).stdout)["rows"]
    name = "Qwen2.5-7B-RL-RAG-Q2-EM-Release"
    assert [(r["policy"], r["objectives"], r["em"], r["searches"]) for r in rows] == [(name, 1, 1, 1), (name, 2, 1, 1)]
    attempts = read_trajectories(tmp_path / "out" / f"{name}-2.jsonl")
    assert len(attempts) == 2 and {t.task.turn_limit for t in attempts if t.task} == {6}
    last = served.model.codec.decode(attempts[0].turns[-1].context_ids)
    start, stop = last.index("<|im_start|>user\n"), last.index("<|im_end|>\n<|im_start|>assistant\n<think> nothing yet")
    assert "Answer the following questions: What is the capital of " in last[start:stop]
    assert last.endswith("</information>") and "[HINT] You have 5 turns left. [/HINT]" in last
    (body, *_) = [body for body in served.model.bodies if body["max_tokens"] > 1]
    assert body["model"] == f"Mem-Lab/{name}" and body["max_tokens"] == 1000
    assert body["stop"] == ["</search>", "</answer>"] and isinstance(body["prompt"], list)


def test_the_stand_in_tokenizer_is_named_wherever_it_counts(served, sources):
    result = recipe(served, sources, "--tokenizer", "stand-in", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert {r["policy"] for r in rows} == {"Qwen2.5-7B-RL-RAG-Q2-EM-Release (stand-in tokens)"}
    assert [r["em"] for r in rows] == [1, 1]
    assert "those of the stand-in tokenizer, not of the model" in " ".join(result.stderr.split())


def test_what_a_chat_server_said_trains_a_model_with_another_tokenizer(served, sources, tmp_path):
    with model_site(Model(served.model.codec, released_agent, prefill=True), chat_only=True) as site:
        served = Served(site, served.model, served.tokenizer)
        recipe(served, sources, "--tokenizer", "stand-in", "engine.endpoint=chat", "--out", tmp_path / "out", "--json")
    codec = Codec.load(served.tokenizer)
    frame = ChatTemplate.load(served.tokenizer, codec)
    found = read_recorded(
        Sft(trajectories=(f"{tmp_path}/out/*.jsonl",), min_reward=1), TagDialogue(codec, RELEASED, frame)
    )
    assert (found.files, found.attempts, found.encoded_anew, found.left_out) == (2, 4, 4, {})
    for attempt in found.trajectories:
        first, last = attempt.turns
        assert codec.decode(last.completion_ids) == last.text and last.text.endswith("</answer>")
        assert first.context_ids[: len(frame.prefix)] == frame.prefix and frame.suffix[0] in first.context_ids
        assert last.context_ids == first.context_ids + first.completion_ids + first.observation_ids


def test_a_spent_limit_leaves_rows_that_say_so(served, sources):
    result = recipe(
        served, sources, "--tokenizer", served.tokenizer, "engine.limit.tokens=6000", "engine.concurrency=1", "--json"
    )
    endings = [r["endings"] for r in json.loads(result.stdout)["rows"]]
    assert sum(e["engine_failed"] for e in endings) > 0 and sum(e["answered"] for e in endings) > 0
    assert [sum(e.values()) for e in endings] == [2, 2], "two questions, so two different tasks of each size"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], r"--tokenizer is missing: .*stand-in counts with another"),
        (["--tokenizer", "stand-in", "engine.limit.dollars=1"], r"engine.limit .*: dollars limits nothing"),
        (["--tokenizer", "stand-in", "engine.endpoint=both"], r"engine.endpoint .*: unknown endpoint 'both'"),
        (["--tokenizer", "stand-in", "engine.api_key_env=NO_SUCH_KEY"], r"the environment variable NO_SUCH_KEY"),
        (["--tokenizer", "stand-in", "protocol.kind=framed"], r"stand-in has no chat template"),
    ],
)
def test_mistakes_are_explained_before_anything_is_searched(served, options, message):
    with pytest.raises(UserError, match=message):
        recipe(served, (), *options)


def test_the_options_of_a_server_need_one_and_a_server_needs_a_name():
    with pytest.raises(UserError, match="--tokenizer is for a served model"):
        call("eval", "--tokenizer", "stand-in")
    with pytest.raises(UserError, match="--base-url needs --model, the model's name on the server"):
        call("run", "--base-url", "http://127.0.0.1:1", "--tokenizer", "stand-in")


def test_a_recipe_without_stages_trains_nothing(tmp_path):
    with pytest.raises(UserError, match=r"no stage to train.*mem1 eval"):
        call("train", RECIPE, "--out", tmp_path / "out")


class TestRun:
    OPTIONS = (
        "--question",
        "What is the capital of Sweden?",
        "protocol={kind='tags',base='released'}",
        "tasks.prompt=released",
    )

    def test_one_agent_on_a_server_is_watched_turn_by_turn(self, served):
        with in_a_thread(BM25.build(TOWNS)) as address:
            model = ("--model", "m", "--base-url", served.site.url, "--tokenizer", served.tokenizer)
            shown = call("run", *self.OPTIONS, *model, f'tasks.retriever.urls=["{address}"]').stdout
        assert "/completions, token ids, with vLLM's fields" in shown
        for part in (
            "turn 1",
            "nothing yet",
            "capital of Sweden",
            "[HINT] You have 5 turns left.",
            "turn 2",
            "Q1 Stockholm",
        ):
            assert part in shown
        assert shown.count("with every turn appended") == 3

    def test_a_server_that_fails_is_an_ending_and_no_traceback(self, served, monkeypatch):
        with in_a_thread(BM25.build(TOWNS)) as address:
            model = ("--model", "m", "--base-url", served.site.url, "--tokenizer", served.tokenizer)
            limited = ("engine.limit.tokens=100", f'tasks.retriever.urls=["{address}"]')
            shown = call("run", *self.OPTIONS, *model, *limited).stdout
            printed = json.loads(call("run", *self.OPTIONS, *model, *limited, "--json").stdout)
        assert "engine failed (the limit of 100 tokens is reached) after 0 turns" in shown
        assert (printed["ended"], printed["turns"]) == (Ended.ENGINE_FAILED.value, [])
