"""Tokenizers that are not ours: a token before every text, a vocabulary that is padded, ends of other protocols."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from builders import CHAT_TEMPLATE
from chat_templates import QWEN25_LIKE, small_tokenizer
from model_servers import Model, model_site
from tag_sets import PAPER_SUMMARY
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from worlds import SAMPLING, SMALL, replay, shelf, task

from mem1.dialogue import Dialogue, NativeDialogue, TagDialogue
from mem1.endpoint.recording import encoded
from mem1.engines.base import Engine, Script, ScriptedEngine
from mem1.engines.chat_messages import ChatMessages, Sampled
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.engines.dialects import PROBE, Chat, CompletionResponse, ContextIds, Text, TokenIds
from mem1.engines.local import LocalEngine
from mem1.engines.openai import OpenAIEngine
from mem1.engines.policy_sampler import CompletionBody, rows
from mem1.engines.servers import ModelServer
from mem1.errors import UserError
from mem1.memory import memory_policy
from mem1.policy.policy import Policy, load_policy, make_policy
from mem1.policy.tiny_model import new_model
from mem1.protocol import PAPER
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.protocol import Protocol
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft
from mem1.records import Trajectory
from mem1.rollout import Budget, Rollout
from mem1.training.supervised import demonstrate
from mem1.training.train import make_rollout, train

BOS = "<|bos|>"
WITH_BOS = "{{ bos_token }}" + CHAT_TEMPLATE
SEARCH, ANSWER = "<IS> now Q1 </IS> <query> city </query>", "<IS> done </IS> <answer> Q1 city </answer>"
BUDGET = Budget(completion_extra=300, context=20_000)


def made_tokenizer(*, adds_bos: bool = True) -> Tokenizer:
    """A byte-level tokenizer that puts BOS before every text, as those of Llama, Gemma and Mistral do."""
    made = Tokenizer.from_str(small_tokenizer())
    made.add_special_tokens([BOS])
    if adds_bos:
        bos = (BOS, made.token_to_id(BOS))
        made.post_processor = TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[bos])
    return made


CODEC = Codec(made_tokenizer())
(BOS_ID,) = CODEC.bos_ids


def fast(template: str, tokenizer: Tokenizer | None = None) -> Any:
    made = tokenizer or made_tokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, bos_token=BOS)


def save(path: Path, tokenizer: Tokenizer, *, end: int, padding: int = 0) -> None:
    """A small model that knows nothing, with `end` as its own end of a text."""
    shape = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
    model = new_model(shape, vocab_size=tokenizer.get_vocab_size() + padding, seed=0)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = end
    Policy(model, Codec(tokenizer)).save(path)


def folder_of(path: Path, template: str, *, adds_bos: bool = True, padding: int = 0) -> Path:
    tokenizer = made_tokenizer(adds_bos=adds_bos)
    save(path, tokenizer, end=0, padding=padding)
    fast(template, tokenizer).save_pretrained(str(path))
    return path


def read_json(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def begins_once(contexts: Sequence[Sequence[int]]) -> bool:
    """Whether each has exactly one BOS, at its start."""
    return bool(contexts) and all(ids[0] == BOS_ID and list(ids).count(BOS_ID) == 1 for ids in contexts)


def contexts_of(attempts: Sequence[Trajectory]) -> list[tuple[int, ...]]:
    return [turn.context_ids for attempt in attempts for turn in attempt.turns]


def attempt(script: Script | Engine, dialogue: Dialogue, context: str = "constant") -> Trajectory:
    engine = ScriptedEngine(dialogue.codec, script, dialogue.chat_template) if callable(script) else script
    made = Rollout(
        engine=engine, dialogue=dialogue, environment=shelf("a"), context=memory_policy(context), budget=BUDGET
    )
    return made([task("city")], sampling=SAMPLING)[0]


def test_a_context_begins_once_with_what_the_tokenizer_puts_before_every_text():
    ids = CODEC.encode("Oslo")
    assert BOS_ID not in ids
    assert CODEC.with_bos(ids) == CODEC.with_bos(CODEC.with_bos(ids)) == (BOS_ID, *ids)
    assert CODEC.without_bos((BOS_ID, *ids)) == CODEC.without_bos(ids) == ids
    plain = Codec(made_tokenizer(adds_bos=False))
    assert plain.bos_ids == () and plain.with_bos((BOS_ID, *ids)) == plain.without_bos((BOS_ID, *ids)) == (BOS_ID, *ids)


class TestEndsToo:
    """A tokenizer that puts a token after every text, as some fine-tuned Llamas and all of the T5 family have."""

    IDS = CODEC.encode("Who founded Alvex?")

    @staticmethod
    def codec(*, begins: bool = True) -> Codec:
        made = made_tokenizer(adds_bos=False)
        marks = [(mark, made.token_to_id(mark)) for mark in (BOS, "<|im_end|>")]
        single = f"{BOS} $A <|im_end|>" if begins else "$A <|im_end|>"
        made.post_processor = TemplateProcessing(single=single, special_tokens=marks[not begins :])
        return Codec(made)

    @pytest.mark.parametrize("begins", [True, False])
    def test_contexts_begin_and_do_not_end(self, begins: bool):
        codec, bos = self.codec(begins=begins), (BOS_ID,) if begins else ()
        end = CODEC.tokenizer.token_to_id("<|im_end|>")
        assert (codec.bos_ids, codec.eos_ids, CODEC.eos_ids) == (bos, (end,), ())
        assert codec.with_bos(codec.encode("Who founded Alvex?")) == (*bos, *self.IDS)
        for theirs in ((*bos, *self.IDS, end), (*bos, *self.IDS), self.IDS):
            assert codec.without_added(theirs) == self.IDS

    def test_a_server_of_text_is_told_to_add_nothing_where_it_knows_that_field(self):
        codec, asked = self.codec(), {"model": "m", "max_tokens": 5, "temperature": 1.0, "stops": ()}

        def body(dialect: Text, codec: Codec) -> dict[str, Any]:
            return json.loads(dialect.encode(dialect.request(codec, codec.with_bos(self.IDS), seed=0, **asked)))

        told, other = body(Text(extras=True), codec), body(Text(), codec)
        assert (told["prompt"], told["add_special_tokens"]) == (f"{BOS}Who founded Alvex?", False)
        assert other["prompt"] == "Who founded Alvex?" and "add_special_tokens" not in other
        assert "add_special_tokens" not in body(Text(extras=True), CODEC), "one that ignores the field would add a BOS"
        (message,) = body(Chat(extras=True), codec)["messages"]
        assert message["content"] == "Who founded Alvex?"

    def test_a_server_that_adds_both_although_told_not_to_has_the_same_tokenizer(self):
        codec = self.codec()
        theirs = tuple(codec.tokenizer.encode(PROBE).ids)
        choice = {"text": "", "finish_reason": "length", "token_ids": [5], "prompt_token_ids": list(theirs)}
        assert Text(extras=True).after_probe(_answer(choice), codec) == TokenIds()
        counted = _answer({"text": "", "finish_reason": "length"}, prompt_tokens=len(theirs))
        assert isinstance(Text(extras=True).after_probe(counted, codec), ContextIds)
        assert not isinstance(Text(extras=True).after_probe(counted, CODEC), ContextIds), "two more than there are"


def _answer(choice: dict[str, Any], **usage: int) -> CompletionResponse:
    told = {"usage": {**usage, "completion_tokens": 1}} if usage else {}
    return Text().read(json.dumps({"choices": [choice], **told}).encode(), ())


@pytest.mark.parametrize("template", ["", CHAT_TEMPLATE, WITH_BOS], ids=["plain", "framed", "framed with BOS"])
@pytest.mark.parametrize("context", ["constant", "full", "fold(2)", "masked", "summary(5)"])
def test_every_context_of_an_attempt_in_tags_has_one(template: str, context: str):
    framed = ChatTemplate.of(fast(template), CODEC, where="the test") if template else ChatTemplate()
    tags = PAPER_SUMMARY if context.startswith("summary") else PAPER
    read: list[str] = []

    def script(text: str) -> str:
        read.append(text)
        if text.rstrip().endswith("<summary>"):
            return "Q1 </summary>"
        return SEARCH if len(read) < 4 else ANSWER

    done = attempt(script, TagDialogue(CODEC, tags, framed), context)
    assert len(done.turns) > 2 and begins_once(contexts_of([done]))
    assert all(text.startswith("Q1 a mayor ?") for text in read), "a script sees neither template nor BOS"


@pytest.mark.parametrize("template", [QWEN25_LIKE, "{{ bos_token }}" + QWEN25_LIKE], ids=["without", "with"])
def test_every_context_in_messages_has_one_whether_or_not_the_template_writes_it(template: str):
    chat = ChatMessages.of(fast(template), CODEC, where="the test")
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "city"}}\n</tool_call><|im_end|>'
    done = attempt(replay(call, call, "city<|im_end|>"), NativeDialogue(chat, PAPER), "full")
    assert len(done.turns) == 3 and begins_once(contexts_of([done]))
    ask = {"role": "user", "content": "Who?"}
    assert begins_once([chat.encode([ask]), encoded(chat, [ask, Sampled((70, 71)), ask], [], [3])[0]])


def test_demonstrations_and_samples_that_are_trained_have_one(tmp_path: Path):
    """The sampler's own log-probs are those of the trainer for the same tokens, BOS included."""
    config = Recipe(
        model=ModelConfig(path=str(folder_of(tmp_path / "m", WITH_BOS))),
        protocol=Protocol(kind="framed"),
        tasks=SMALL,
        budget={"completion_extra": 300, "context": 8000},  # type: ignore[arg-type]
        sft=Sft(steps=1, objectives=(1,), tasks=2),
    )
    policy, source = make_policy(config), SMALL.source("train", PAPER)
    rollout = make_rollout(config, policy, source)
    assert begins_once(contexts_of(demonstrate(config, rollout, source, PAPER)))
    sampled = replace(cast(Rollout, rollout), budget=Budget(completion_extra=8, context=8000))
    assert isinstance(sampled.engine, LocalEngine)
    assert begins_once(contexts_of(sampled(source.tasks(objectives=1, count=2, seed=0), sampling=SAMPLING)))


@pytest.mark.parametrize(
    ("framed", "chat_only"), [(False, False), (True, False), (False, True)], ids=["plain", "framed", "chat"]
)
def test_a_server_of_text_which_puts_it_there_itself_gets_none(framed: bool, chat_only: bool):
    template = ChatTemplate.of(fast(WITH_BOS), CODEC, where="the test") if framed else ChatTemplate()
    dialogue = TagDialogue(CODEC, PAPER, template)
    model = Model(CODEC, lambda _: ANSWER)
    with model_site(model, chat_only=chat_only) as server:
        config = ModelServer(urls=(f"{server.url}/v1",), model="m")
        done = attempt(OpenAIEngine.open(config, CODEC, PAPER.stop_strings), dialogue)
    sent = model.bodies[-1]
    text = sent["messages"][0]["content"] if chat_only else sent["prompt"]
    assert begins_once(contexts_of([done])) and "Q1 a mayor ?" in text and BOS not in text


def test_a_policy_server_puts_it_before_texts_unless_it_is_there_or_it_is_told_not_to():
    def context(prompt: Any, **options: Any) -> tuple[int, ...]:
        (row,) = rows(CompletionBody(prompt=prompt, **options), CODEC, vocabulary=10_000, longest=None)
        return row.context

    ids = CODEC.encode("Oslo")
    assert context("Oslo") == context(f"{BOS}Oslo") == context(["Oslo"]) == (BOS_ID, *ids)
    assert context("Oslo", add_special_tokens=False) == context(list(ids)) == ids


def test_what_its_last_user_had_set_in_a_tokenizer_cuts_and_pads_no_text(tmp_path: Path):
    made = made_tokenizer()
    made.enable_truncation(4)
    made.enable_padding(length=64)
    made.save(str(tmp_path / "tokenizer.json"))
    assert Codec.load(tmp_path).encode("Who is the mayor of Oslo?") == CODEC.encode("Who is the mayor of Oslo?")


class TestPadding:
    """Ids that the model knows and the tokenizer does not."""

    BEYOND = CODEC.vocab_size + 7

    @pytest.mark.parametrize("where", ["in the state", "in a tag", "at the end"])
    def test_one_decodes_to_nothing_and_the_attempt_goes_on(self, where: str):
        ids = CODEC.encode(SEARCH)
        place = {"in the state": 3, "in a tag": len(ids) - 2, "at the end": len(ids)}[where]
        written = iter([(*ids[:place], self.BEYOND, *ids[place:]), CODEC.encode(ANSWER)])

        class Server(Model):
            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                code, said = super().completion(body)
                if body["max_tokens"] > 1:
                    sampled = next(written)
                    said["choices"][0] |= {"token_ids": list(sampled)}
                    said["choices"][0]["logprobs"]["token_logprobs"] = [-0.5] * len(sampled)
                return code, said

        with model_site(Server(CODEC, lambda _: ANSWER, vllm=True)) as server:
            config = ModelServer(urls=(f"{server.url}/v1",), model="m", tries=1)
            done = attempt(OpenAIEngine.open(config, CODEC, PAPER.stop_strings), TagDialogue(CODEC))
        first, second = done.turns
        assert (first.text, first.content, first.state) == (SEARCH, "city", "now Q1")
        assert self.BEYOND in second.context_ids, "it stays what was sampled"
        assert done.answer == "Q1 city"

    def test_one_beyond_the_model_too_is_refused_where_the_model_is_known(self, tmp_path: Path):
        codec = load_policy(folder_of(tmp_path / "m", CHAT_TEMPLATE, padding=64)).codec
        assert codec.rows is not None and codec.rows == codec.vocab_size + 64
        ids = [5, codec.rows - 1]
        assert codec.within(ids) and codec.decode(ids) == codec.decode(ids[:1])
        choice = {"text": "", "finish_reason": "stop", "token_ids": [5, codec.rows], "prompt_token_ids": [1]}
        response = TokenIds().read(json.dumps({"choices": [choice]}).encode(), ())
        asked = TokenIds().request(codec, [1], seed=0, model="m", max_tokens=5, temperature=1.0, stops=())
        with pytest.raises(ValueError, match=f"token {codec.rows}, but the model knows {codec.rows} tokens"):
            TokenIds().completion(response, asked, codec, processed_logprobs=False)


class TestEnds:
    """What a server of the saved folder needs to know to stop."""

    def saved(self, folder: Path, tmp_path: Path, **fields: Any) -> Any:
        """eos_token_id of the saved policy and of its checkpoint, in both configurations."""
        config = Recipe(
            tasks=SMALL,
            budget={"completion_extra": 4, "context": 8000},  # type: ignore[arg-type]
            rl=Rl(curriculum=(Phase(steps=1, objectives=(1,)),), tasks_per_step=1, group_size=2),
            writers=(),
            **{"model": ModelConfig(path=str(folder)), **fields},
        )
        assert train(config, tmp_path / "run", command=["mem1", "train"]).complete
        kept = [tmp_path / "run" / "policy", *(tmp_path / "run" / "checkpoints").glob("*/model")]
        ends = {
            json.dumps(read_json(f, name)["eos_token_id"]) for f in kept for name in ("generation_config", "config")
        }
        assert len(kept) == 2 and len(ends) == 1
        return json.loads(ends.pop())

    @pytest.mark.parametrize(
        ("generation", "config", "ends"),
        [
            ({"eos_token_id": [0, 1], "temperature": 0.6, "do_sample": False, "own": 3}, 1, [0, 1]),
            ({"top_p": 0.8, "do_sample": True}, 1, [1]),
            ({"top_p": 0.8, "do_sample": True}, [1, 0], [1, 0]),
            (None, 1, [1]),
            ({"eos_token_id": None}, None, []),
        ],
        ids=["several and a setting without use", "only config.json", "a list there", "no file", "no end of its own"],
    )
    def test_what_the_folder_says_of_generation_is_kept_and_saving_again_changes_nothing(
        self, tmp_path: Path, generation: dict[str, Any] | None, config: Any, ends: list[int]
    ):
        folder = folder_of(tmp_path / "m", QWEN25_LIKE)
        (folder / "config.json").write_text(json.dumps({**read_json(folder, "config"), "eos_token_id": config}))
        (folder / "generation_config.json").unlink()
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        end = CODEC.tokenizer.token_to_id("<|im_end|>")
        wanted = [*ends, end] if ends else end
        for start, out in ((folder, tmp_path / "one"), (tmp_path / "one", tmp_path / "two")):
            recipe = Recipe(model=ModelConfig(path=str(start)), protocol=Protocol(kind="tools"), tasks=SMALL)
            make_policy(recipe).save(out)
            told = read_json(out, "generation_config")
            assert told["eos_token_id"] == read_json(out, "config")["eos_token_id"] == wanted
            assert {key: told[key] for key in generation or {} if key != "eos_token_id"} == {
                key: value for key, value in (generation or {}).items() if key != "eos_token_id"
            }
        load_policy(tmp_path / "one").save(tmp_path / "again")
        for name in ("generation_config.json", "config.json", "protocol.json", "chat_template.jinja"):
            once, *others = ((tmp_path / of / name).read_bytes() for of in ("one", "two", "again"))
            assert others == [once, once], name

    @pytest.mark.parametrize("padding", [0, 64])
    def test_a_model_that_speaks_in_messages_stops_at_their_end_and_at_its_own(self, tmp_path: Path, padding: int):
        folder = folder_of(tmp_path / "m", QWEN25_LIKE, padding=padding)
        ends = self.saved(folder, tmp_path, protocol=Protocol(kind="tools"))
        assert ends == [0, CODEC.tokenizer.token_to_id("<|im_end|>")]

    def test_one_that_speaks_in_tags_stops_at_those_that_are_tokens(self, tmp_path: Path):
        folder = folder_of(tmp_path / "m", CHAT_TEMPLATE)
        tags = [CODEC.tokenizer.token_to_id(stop) for stop in PAPER.stop_strings]
        assert None not in tags
        assert self.saved(folder, tmp_path) == [0, *tags]

    def test_tags_that_are_no_tokens_leave_the_models_own_end_as_it_was(self, tmp_path: Path):
        written = made_tokenizer().to_str().replace("</query>", "</qqqqq>").replace("</answer>", "</nnnnnn>")
        save(tmp_path / "m", Tokenizer.from_str(written), end=3)
        assert self.saved(tmp_path / "m", tmp_path) == 3


def test_a_chat_model_without_a_template_is_still_refused(tmp_path: Path):
    folder = folder_of(tmp_path / "m", CHAT_TEMPLATE)
    (folder / "chat_template.jinja").unlink()
    config = Recipe(model=ModelConfig(path=str(folder)), protocol=Protocol(kind="tools"), tasks=SMALL)
    with pytest.raises(UserError, match="chat template"):
        make_policy(config)
