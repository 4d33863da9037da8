"""Supervised fine-tuning on recorded attempts: which are trained, in which tokens, and what is refused."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from released import SEARCH, answered, line
from safetensors.torch import load_file
from samples import write_lines
from typer.testing import CliRunner
from worlds import CODEC, SAMPLING, SMALL, rollout

from mem1.cli.main import app
from mem1.configuration import load_toml
from mem1.dialogue import TagDialogue
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.evaluation.judge import JudgedAnswer, Verdicts
from mem1.model_folder import asset
from mem1.policy.policy import Policy, load_policy, make_policy
from mem1.policy.protocol import ResolvedProtocol
from mem1.protocol import PAPER, RELEASED, Tags
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import Lora, ModelConfig, TinyModel
from mem1.recipe.recipe import Kept, Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft
from mem1.records import Ended, Trajectory
from mem1.rollout import Budget
from mem1.run_folder import read_metrics
from mem1.training.logprobs import completion_logprobs
from mem1.training.ranks.optimizers import adamw, muon
from mem1.training.recorded import Recorded, read_recorded, recorded_files
from mem1.training.train import Progress, train
from mem1.trajectory_files import append_trajectories, read_trajectories, write_trajectories

RELEASED_FILES = "mem1_release_files:read_trajectories"
STAND_IN = Codec.load(asset("stand-in"))
FRAME = ChatTemplate(CODEC.encode("Q2"), CODEC.encode("Q3 Q4"))
ATLAS = SMALL.source("train", PAPER)
ROOMY = Budget(completion_extra=4000, context=16_000)


def attempts(codec: Codec, *, context: str = "constant", frame: ChatTemplate | None = None) -> list[Trajectory]:
    """The expert's at two tasks of three questions, one of which must answer early."""
    tasks = ATLAS.tasks(objectives=3, count=2, seed=0)
    tasks[1] = replace(tasks[1], turn_limit=2)
    expert = SMALL.expert(tasks, ATLAS.environment, PAPER, seed=0)
    run = rollout(expert, ATLAS.environment, context=context, codec=codec, budget=ROOMY)
    if frame is not None:
        assert isinstance(run.dialogue, TagDialogue)
        run = replace(
            run, dialogue=replace(run.dialogue, chat_template=frame), engine=replace_template(run.engine, frame)
        )
    return run(tasks, sampling=SAMPLING)


def replace_template(engine: Any, frame: ChatTemplate) -> Any:
    return type(engine)(engine.codec, engine.script, frame)


def read(
    path: Path | str, codec: Codec = CODEC, frame: ChatTemplate | None = None, tags: Tags = PAPER, **keys: Any
) -> Recorded:
    return read_recorded(Sft(trajectories=(str(path),), **keys), TagDialogue(codec, tags, frame or ChatTemplate()))


def tokens(trajectories: Sequence[Trajectory]) -> list[list[tuple[Any, ...]]]:
    """What a turn is trained on, and what later contexts need."""
    return [
        [
            (t.context_ids, t.completion_ids, t.observation_ids, t.completion_spans, t.context_spans)
            for t in attempt.turns
        ]
        for attempt in trajectories
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "attempts.jsonl"


class TestTokens:
    def test_attempts_in_this_models_tokens_are_trained_as_they_were_sampled(self, file):
        made = attempts(CODEC)
        write_trajectories(file, made)
        found = read(file)
        assert list(found.trajectories) == made and len(made[0].turns) > 3
        assert (found.files, found.attempts, found.encoded_anew, found.reframed, found.left_out) == (1, 2, 0, 0, {})
        assert str(found) == "2 of 2 attempts in 1 file are trained"

    @pytest.mark.parametrize("context", ["constant", "full", "fold(2)", "masked", "external(2)"])
    def test_attempts_of_another_tokenizer_become_what_this_one_would_have_recorded(self, file, context):
        recorded, ours = attempts(STAND_IN, context=context), attempts(CODEC, context=context)
        assert (
            recorded[1].turns[-1].prefilled and recorded[0].turns[0].completion_ids != ours[0].turns[0].completion_ids
        )
        write_trajectories(file, recorded)
        found = read(file)
        assert tokens(found.trajectories) == tokens(ours)
        assert (found.encoded_anew, found.reframed) == (2, 0)
        assert str(found).endswith("; 2 encoded anew from their text, not as they were sampled")

    def test_a_chat_template_is_put_around_the_prompt_and_what_was_sampled_stays(self, file):
        write_trajectories(file, attempts(CODEC))
        found = read(file, frame=FRAME)
        assert tokens(found.trajectories) == tokens(attempts(CODEC, frame=FRAME))
        assert (found.encoded_anew, found.reframed) == (0, 2)
        assert str(found).endswith("; 2 put into this model's chat template")

    def test_tokens_that_were_sampled_stay_where_encoding_their_text_would_give_others(self, file):
        (first, _) = attempts(STAND_IN)
        turn = first.turns[-1]
        bytewise = tuple(token for letter in turn.text for token in STAND_IN.encode(letter))
        assert bytewise != turn.completion_ids and STAND_IN.decode(bytewise) == turn.text
        respelt = replace(turn, completion_ids=bytewise, completion_spans={}, weights_versions=())
        odd = replace(first, turns=(*first.turns[:-1], respelt))
        write_trajectories(file, [odd])
        for frame in (ChatTemplate(), ChatTemplate(STAND_IN.encode("user: "), ())):
            assert read(file, STAND_IN, frame).trajectories[0].turns[-1].completion_ids == bytewise

    def test_result_files_of_mem1s_release_are_read_by_their_reader(self, tmp_path):
        path = tmp_path / "run_mem1.jsonl"
        write_lines(path, line(1, SEARCH, answered("Mira Toll; Bergen")), line(2, SEARCH, answered("no; no")))
        found = read(path, STAND_IN, tags=RELEASED, reader=RELEASED_FILES, min_reward=2)
        (attempt,) = found.trajectories
        first, last = attempt.turns
        assert STAND_IN.decode(last.completion_ids) == answered("Mira Toll; Bergen")
        assert last.context_ids == first.context_ids + first.completion_ids + first.observation_ids
        assert (found.encoded_anew, found.left_out) == (1, {"with a reward below 2": 1})
        framed = read(path, STAND_IN, ChatTemplate(STAND_IN.encode("user: "), ()), RELEASED, reader=RELEASED_FILES)
        assert STAND_IN.decode(framed.trajectories[0].turns[1].context_ids).startswith("user: You will answer")
        assert (framed.encoded_anew, framed.reframed) == (2, 0)
        write_lines(path, line(1, answered("Mira Toll; Bergen")))  # its answer would be right in other tags too
        with pytest.raises(UserError, match="attempt 1, turn 1 is written in the tags 'released', but the"):
            read(path, STAND_IN, reader=RELEASED_FILES)

    def test_the_reader_of_the_page_is_one_of_your_own(self, tmp_path, monkeypatch):
        page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
        (tmp_path / "chats.py").write_text(re.findall(r'```python title="chats.py"\n(.*?)```', page, re.S)[0])
        said = ["Who founded Alvex?", "<IS> no </IS> <query> Alvex </query>", "<info> Mira </info>"]
        chat = [{"content": text} for text in (*said, "<IS> Mira </IS> <answer> Mira </answer>")]
        path = tmp_path / "chats.jsonl"
        write_lines(path, {"messages": chat, "answers": ["Mira"], "reward": 1.0})
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "chats", raising=False)
        found = read(path, STAND_IN, reader="chats:read_chats")
        assert STAND_IN.decode(found.trajectories[0].turns[1].context_ids) == "".join(said)
        assert (found.encoded_anew, found.reframed) == (1, 0)

    @pytest.mark.parametrize(("returned", "said"), [("[{}]", "{}"), ("None", "None"), ("'chat'", "'c'")])
    def test_a_reader_that_returns_something_else_is_named(self, tmp_path, monkeypatch, returned: str, said: str):
        (tmp_path / "odd_chats.py").write_text(f"def read_chats(path, codec):\n    return {returned}\n")
        path = tmp_path / "chats.jsonl"
        path.write_text("{}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "odd_chats", raising=False)
        with pytest.raises(UserError, match=rf"'odd_chats:read_chats', {path}: it returned {said}; a reader returns"):
            read(path, STAND_IN, reader="odd_chats:read_chats")


class TestLeftOut:
    def test_attempts_without_an_answer_or_enough_reward_are_counted(self, file):
        good, low = attempts(CODEC)
        cut = replace(good, ended=Ended.OUT_OF_TURNS)
        failed = replace(good, ended=Ended.TOOL_FAILED, reward=None)
        malformed = replace(good, turns=(replace(good.turns[0], text="x"), *good.turns[1:]))
        unknown = "<IS> zzz </IS> <query> q </query>"
        odd = replace(good.turns[0], completion_ids=(1,), text=unknown, state="zzz", weights_versions=())
        strange = replace(good, turns=(odd, *good.turns[1:]))
        write_trajectories(file, [good, low, cut, failed, malformed, replace(good, task=None), strange])
        assert low.reward is not None and low.reward < 3 == good.reward
        found = read(file, min_reward=3)
        assert found.trajectories == (good,)
        assert found.left_out == {
            "with a reward below 3": 1,
            "that did not end with an answer": 1,
            "whose tool or model server failed": 1,
            "that are malformed by this parser": 1,
            "without task or text": 1,
            "with words that this tokenizer does not know": 1,
        }
        assert found.record()["trained"] == 1 and found.record()["left_out"] == found.left_out

    def test_attempts_whose_memory_counts_tokens_and_would_cut_them_elsewhere_are_counted(self, file):
        shorter = sum(len(t.completion_ids + t.observation_ids) for t in attempts(CODEC)[0].turns[:3])
        recorded = attempts(STAND_IN, context=f"discard_all({shorter})")  # which has more tokens for the same text
        assert len(recorded[0].turns) > 3 and tokens(recorded) != tokens(attempts(STAND_IN, context="full"))
        alike = attempts(STAND_IN, context="discard_all(9999)")
        write_trajectories(file, [recorded[0], *alike, replace(alike[0], context="summary(1)")])
        found = read(file)
        assert tokens(found.trajectories) == tokens(attempts(CODEC, context="full"))
        assert found.left_out == {
            "whose memory would keep or ask for something else in the tokens of this model": 2,
        }

    def test_a_list_of_patterns_takes_each_file_once_and_a_line_being_written_is_left_out(self, tmp_path):
        for name in ("a-1", "a-2", "b-1"):
            append_trajectories(tmp_path / f"{name}.jsonl", attempts(CODEC))
        with (tmp_path / "b-1.jsonl").open("ab") as open_file:
            open_file.write(b'{"version": 3, "tur')
        patterns = (str(tmp_path / "a-*.jsonl"), str(tmp_path / "*-1.jsonl"))
        found = read_recorded(Sft(trajectories=patterns), TagDialogue(CODEC))
        assert (found.files, found.attempts) == (3, 6)

    @pytest.mark.parametrize(
        ("change", "tags", "keys", "message"),
        [
            (
                {},
                RELEASED,
                {},
                "attempt 1, turn 1 is written in the tags 'paper', but the recipe's are 'released'",
            ),
            ({}, PAPER, {"min_reward": 9}, r"attempts.jsonl has no attempt to train: 2 with a reward below 9; change"),
            (
                {"context": "amem"},
                PAPER,
                {},
                "attempt 1 cannot be encoded for this model: unknown memory 'amem'",
            ),
            ({"ended": "x"}, PAPER, {}, "attempts.jsonl:1: not a trajectory record"),
            (None, PAPER, {}, "attempts.jsonl has no attempt to train: they are empty"),
        ],
    )
    def test_what_cannot_be_trained_is_said_in_one_line(self, file, change, tags, keys, message):
        write_trajectories(file, attempts(STAND_IN))
        records = [json.loads(line) | (change or {}) for line in file.read_text().splitlines()]
        write_lines(file, *(records if change is not None else []))
        with pytest.raises(UserError, match=message) as error:
            read(file, tags=tags, **keys)
        assert "\n" not in str(error.value)


TINY = ModelConfig(new=TinyModel(hidden_size=16, layers=1, heads=2, feed_forward=16, look_back=()))


def recipe(trajectories: str, **keys: Any) -> Recipe:
    sft = {"steps": 4, "tokens": 512, "warmup": 0, "trajectories": trajectories, **keys}
    return Recipe(
        model=TINY,
        tasks=SMALL,
        sft=Sft.model_validate(sft),
        evaluation=Evaluation(objectives=(1,), tasks=2),
        checkpoint_every=2,
        writers=(),
    )


run = partial(train, command=["mem1"])


def test_the_verdicts_of_a_judge_beside_attempts_are_none(file: Path):
    write_trajectories(file, attempts(STAND_IN))
    Verdicts(file.with_name("verdicts.jsonl"), model="m").put(JudgedAnswer("Who?", ("Mira",), "Mira"), True)
    assert recorded_files(Sft(steps=1, trajectories=(str(file.with_name("*.jsonl")),))) == [file]


class TestRuns:
    def test_a_run_trains_them_says_what_was_encoded_and_resumes_with_the_same_files_alone(
        self, file, tmp_path, caplog
    ):
        write_trajectories(file, attempts(STAND_IN))
        config, out = recipe(str(file), optimizer="adamw", learning_rate=1e-3, weight_decay=0.1), tmp_path / "run"
        assert run(config, out).complete
        assert "[sft] 2 of 2 attempts in 1 file are trained; 2 encoded anew from their text" in caplog.text
        losses = [row["loss"] for row in read_metrics(out / "metrics.jsonl")]
        assert len(losses) == 4 and losses[-1] < losses[0]
        noted = json.loads((out / "resolved.json").read_text())["sft"]
        assert (noted["files"], noted["attempts"], noted["trained"], noted["encoded_anew"]) == (1, 2, 2, 2)
        assert load_toml(out / "config.toml", Recipe) == config
        # the same attempts in this model's own tokens are the same training
        write_trajectories(file, attempts(CODEC))
        assert run(config, tmp_path / "again").complete
        assert [row["loss"] for row in read_metrics(tmp_path / "again" / "metrics.jsonl")] == losses
        stopped = tmp_path / "stopped"

        def stop(progress: Progress) -> None:
            if progress.step == 2:
                signal.raise_signal(signal.SIGTERM)

        assert not run(config, stopped, on_step=stop).complete
        append_trajectories(file, attempts(CODEC)[:1])
        with pytest.raises(UserError, match="began with 2 attempts, now there are 3; restore the files"):
            run(config, stopped, resume=True)
        file.unlink()
        with pytest.raises(UserError, match="no file matches"):
            run(config, stopped, resume=True)
        assert run(config, out, resume=True).complete, "no step of [sft] is left, so nothing is read"

    @pytest.mark.parametrize(("minutes", "steps"), [(1e-9, [1, 2, 3, 4]), (60.0, [4])])
    def test_checkpoints_are_also_written_by_time_which_changes_no_number(self, file, tmp_path, minutes, steps):
        write_trajectories(file, attempts(CODEC))
        changes = {"checkpoint_every": 1000, "checkpoint_minutes": minutes}
        saved: list[Path] = []
        assert run(recipe(str(file)).model_copy(update=changes), tmp_path / "run", on_saved=saved.append).complete
        assert [int(path.name.rpartition("-")[2]) for path in saved] == steps
        assert run(recipe(str(file)), tmp_path / "plain").complete
        first, second = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("run", "plain"))
        assert first == second

    def test_what_has_changed_since_it_was_written_is_noticed(self, file, tmp_path):
        write_trajectories(file, attempts(CODEC))
        config, out = recipe(str(file), optimizer="adamw", learning_rate=1e-3), tmp_path / "run"
        assert run(config, out).complete
        metrics, rows = out / "metrics.jsonl", (out / "metrics.jsonl").read_text().splitlines(keepends=True)
        for changed in (
            rows[1:],
            rows[:-1],
            [rows[0].replace('"loss": ', '"loss": 1'), *rows[1:]],
        ):
            metrics.write_text("".join(changed))
            with pytest.raises(UserError, match=r"metrics.jsonl is not as the run has written it"):
                run(config, out, resume=True)
        metrics.write_text("".join(rows))
        assert run(config, out, resume=True).complete and metrics.read_text() == "".join(rows)

        weights = bytearray((out / "policy" / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (out / "policy" / "model.safetensors").write_bytes(weights)
        with pytest.raises(
            UserError, match=r"policy is damaged: model.safetensors is missing or not as it was written"
        ):
            load_policy(out / "policy")
        (out / "policy" / "manifest.json").unlink()
        assert load_policy(out / "policy").folder == out / "policy", "whoever changed it on purpose says so"

    @pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")
    def test_adapters_are_trained_and_merged_before_the_next_stage_trains_new_ones(self, file, tmp_path):
        write_trajectories(file, attempts(CODEC))
        rl = Rl(curriculum=(Phase(steps=2, objectives=(1,)),), tasks_per_step=1, group_size=2, warmup=0)
        changes = {"lora": Lora(rank=4), "rl": rl, "checkpoint_every": 1}
        config = recipe(str(file), optimizer="adamw", learning_rate=1e-2).model_copy(update=changes)
        out = tmp_path / "run"

        def stop(progress: Progress) -> None:
            if (progress.stage, progress.step) == ("rl", 1):
                signal.raise_signal(signal.SIGTERM)

        assert not run(config, out, on_step=stop).complete
        losses = [row["loss"] for row in read_metrics(out / "metrics.jsonl")]
        assert len(losses) == 5 and losses[3] < losses[0]
        assert run(config, out, resume=True).complete and run(config, tmp_path / "unbroken").complete
        one, other = (load_file(folder / "policy" / "model.safetensors") for folder in (out, tmp_path / "unbroken"))
        start = dict(make_policy(config).model.named_parameters())
        assert all(torch.equal(one[name], other[name]) for name in start.keys() & one.keys())
        moved = {name for name in start.keys() & one.keys() if not torch.equal(start[name], one[name])}
        assert moved and all("_proj" in name for name in moved)

    def test_attempts_that_runs_kept_are_trained_as_they_were_sampled_each_token_once(self, tmp_path):
        rl = Rl.model_validate({"tasks_per_step": 2, "group_size": 4, "curriculum": [{"steps": 1, "objectives": [1]}]})
        for seed in (0, 1):
            learner = Recipe(seed=seed, tasks=SMALL, rl=rl, trajectories=Kept(groups=2), writers=())
            assert run(learner, tmp_path / "runs" / str(seed)).complete
        files = sorted(tmp_path.glob("runs/*/trajectories/*.jsonl"))
        kept = [attempt for file in files for attempt in read_trajectories(file)]
        good = [attempt for attempt in kept if attempt.ended is Ended.ANSWERED and attempt.reward == 1]
        assert (len(files), len(kept)) == (2, 16) and 0 < len(good) < 16
        sft = {"trajectories": str(tmp_path / "runs/*/trajectories/*.jsonl"), "min_reward": 1, "steps": 1}
        config = Recipe(tasks=SMALL, sft=Sft.model_validate({**sft, "tokens": 100_000}), writers=())
        policy = make_policy(config)
        assert config.sft is not None
        found = read_recorded(config.sft, policy.dialogue(ResolvedProtocol(tags=PAPER)))
        assert list(found.trajectories) == good and (found.encoded_anew, found.reframed) == (0, 0)
        # one step on all of them: the mean over what was sampled, each attempt by itself
        assert run(config, tmp_path / "sft").complete
        (row,) = read_metrics(tmp_path / "sft" / "metrics.jsonl")
        with torch.no_grad():
            sampled = [turn for attempt in good for turn in completion_logprobs(policy.model, [attempt])[0]]
        assert sum(map(len, sampled)) == sum(attempt.num_completion_tokens for attempt in good)
        mean = -sum(float(turn.double().sum()) for turn in sampled) / sum(map(len, sampled))
        assert row["loss"] == pytest.approx(mean, rel=1e-4)

    def test_files_that_cannot_be_trained_leave_no_folder(self, file, tmp_path):
        write_trajectories(file, [replace(t, ended=Ended.BAD_TAGS) for t in attempts(CODEC)])
        cases = {
            str(tmp_path / "no*.jsonl"): "sft.trajectories: no file matches '.*no[*].jsonl' in ",
            str(file): "has no attempt to train: 2 that did not end with an answer",
        }
        for pattern, message in cases.items():
            with pytest.raises(UserError, match=message):
                run(recipe(pattern), tmp_path / "run")
            assert not (tmp_path / "run").exists()

    def test_a_dry_run_reads_them(self, file, tmp_path):
        write_trajectories(file, attempts(CODEC))
        text = f'[tasks]\nkind = "atlas"\n[sft]\ntrajectories = "{file}"\npack_tokens = 512\ntokens = 512\n'
        text += "[evaluation]\nobjectives = [1]\n"
        (tmp_path / "recipe.toml").write_text(text)

        def checked(*overrides: str) -> dict[str, Any]:
            done = CliRunner().invoke(
                app, ["train", str(tmp_path / "recipe.toml"), *overrides, "--dry-run", "--json"], catch_exceptions=False
            )
            return next(c for c in json.loads(done.stdout)["checks"] if c["name"] == "trajectories")

        detail = "2 of 2 attempts in 1 file are trained"
        assert checked() == {"name": "trajectories", "ok": True, "detail": detail, "key": "sft.trajectories"}
        assert not checked("sft.trajectories=nowhere/*.jsonl")["ok"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"trajectories": "x", "tasks": 4}, "tasks is for demonstrations by the expert; leave it out"),
        ({"trajectories": "x", "memories": ["full"]}, "memories is for demonstrations"),
        ({"min_reward": 1.0}, "min_reward is for recorded attempts; give trajectories"),
        ({"reader": RELEASED_FILES}, "reader is for recorded attempts"),
        ({"trajectories": []}, "at least 1 item"),
        ({"trajectories": "x", "reader": "mem2"}, "unknown reader 'mem2'; known: none"),
        ({"optimizer": "adamw", "adam_learning_rate": 1e-3}, "with optimizer = 'adamw' give learning_rate"),
        ({"optimizer": "sgd"}, "'muon' or 'adamw'"),
        ({"weight_decay": 2.0}, "less than or equal to 1"),
    ],
)
def test_keys_without_effect_and_unknown_names_are_refused(keys: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Sft.model_validate(keys)


def test_a_single_pattern_and_the_rates_of_each_optimiser():
    assert Sft.model_validate({"trajectories": "runs/*.jsonl"}).trajectories == ("runs/*.jsonl",)
    assert (Sft().rates, Sft(optimizer="adamw").rates[0]) == ((0.02, 3e-3), 1e-5)
    assert Sft(learning_rate=0.1, adam_learning_rate=0.2).rates == (0.1, 0.2)


@pytest.mark.parametrize("make", [adamw, lambda model, rate, decay: muon(model, rate, rate, decay)])
def test_weight_decay_shrinks_matrices_alone(make: Any):
    policy: Policy = make_policy(Recipe(model=TINY, tasks=SMALL))
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    for p in policy.model.parameters():
        p.grad = torch.zeros_like(p)
    make(policy.model, 0.1, 0.5).step(scale=0.5)
    kept = {name: 0.975 if p.ndim == 2 else 1.0 for name, p in before.items()}  # 1 - rate * scale * decay
    assert set(kept.values()) == {0.975, 1.0}
    for name, p in policy.model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * kept[name])
