"""A model that was trained on chats stays one: its template frames every prompt, and its files travel with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import CHAT_FILES, CHAT_TEMPLATE, chat_folder
from typer.testing import CliRunner
from worlds import SMALL

from mem1.cli.main import app
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.policy.policy import load_policy, make_policy
from mem1.protocol import PAPER
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.protocol import Protocol
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft
from mem1.records import Trajectory
from mem1.training.runs.checkpoint import export_checkpoint
from mem1.training.supervised import demonstrate
from mem1.training.train import make_rollout, train
from mem1.trajectory_files import read_trajectories

BEFORE, AFTER = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture(scope="module")
def config(chat: Path) -> Recipe:
    """A step of imitation and one of reinforcement."""
    return Recipe(
        model=ModelConfig(path=str(chat)),
        protocol=Protocol(kind="framed"),
        tasks=SMALL,
        budget={"completion_extra": 200, "context": 8192},  # type: ignore[arg-type]
        sft=Sft(steps=1, objectives=(1,), tasks=2),
        rl=Rl(curriculum=(Phase(steps=1, objectives=(1,)),), tasks_per_step=1, group_size=2),
        evaluation=Evaluation(objectives=(1,), tasks=1),
        writers=(),
    )


@pytest.fixture(scope="module")
def trained(config: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; a budget of few tokens, as the model never stops by itself."""
    out = tmp_path_factory.mktemp("runs") / "chat"
    assert train(config, out, command=["mem1", "train"]).complete
    return out


def kept(folder: Path) -> dict[str, bytes]:
    names = ("chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json")
    return {name: (folder / name).read_bytes() for name in (*names, "additional_chat_templates/tools.jinja")}


def framed(attempts: list[Trajectory], codec: Codec) -> bool:
    """Whether all contexts begin with the prompt in its chat template, and no completion holds a mark of it."""
    before, after = codec.encode(BEFORE), codec.encode(AFTER)
    for turn in (turn for attempt in attempts for turn in attempt.turns):
        assert attempts[0].task is not None
        prompts = {codec.encode(t.task.prompt) for t in attempts if t.task is not None}
        if not any(turn.context_ids[: len(f)] == f for f in (before + prompt + after for prompt in prompts)):
            return False
    return any(attempt.turns for attempt in attempts)


def test_every_file_of_the_tokenizer_is_in_the_trained_policy_and_in_the_export(chat: Path, trained: Path):
    assert kept(trained / "policy") == kept(chat)
    (checkpoint,) = (trained / "checkpoints").glob("checkpoint-000002")
    exported = trained.parent / "exported"
    export_checkpoint(checkpoint, exported)
    assert kept(exported) == kept(chat)
    for folder in (trained / "policy", exported):
        generation = json.loads((folder / "generation_config.json").read_text())
        (own,) = CHAT_FILES["generation_config.json"]["eos_token_id"]
        ends = [Codec.load(chat).encode(stop)[0] for stop in PAPER.stop_strings]
        assert {k: generation[k] for k in ("do_sample", "temperature")} == {"do_sample": True, "temperature": 0.6}
        assert generation["eos_token_id"] == list(dict.fromkeys([own, *ends]))
        assert (
            load_policy(folder, chat_template=True).chat_template == load_policy(chat, chat_template=True).chat_template
        )


def test_a_recipe_puts_prompts_into_the_frame_which_is_context_and_never_trained(config: Recipe):
    policy, source = make_policy(config), SMALL.source("train", PAPER)
    assert policy.chat_template == ChatTemplate(policy.codec.encode(BEFORE), policy.codec.encode(AFTER))
    rollout = make_rollout(config, policy, source)
    shown = demonstrate(config, rollout, source, PAPER)
    assert framed(shown, policy.codec) and max(len(t.turns) for t in shown) > 1
    marks = {policy.codec.encode(mark)[0] for mark in ("<|im_start|>", "<|im_end|>")}
    assert not any(marks & set(turn.completion_ids) for t in shown for turn in t.turns)
    plain = make_rollout(config, replace(policy, chat_template=ChatTemplate()), source)
    without = demonstrate(config, plain, source, PAPER)
    assert [t.turns[-1].text for t in shown] == [t.turns[-1].text for t in without], "the expert sees no template"
    assert policy.fingerprint() != replace(policy, chat_template=ChatTemplate()).fingerprint()


def test_eval_by_the_recipe_uses_the_chat_template_of_the_run(trained: Path, tmp_path: Path):
    codec = Codec.load(trained / "policy")
    options = [
        str(trained / "config.toml"),
        "budget.completion_extra=4",
        "--model",
        str(trained / "policy"),
        "--limit",
        "2",
    ]
    result = CliRunner().invoke(app, ["eval", *options, "--out", str(tmp_path / "a"), "--json"])
    assert result.exit_code == 0, result.exception
    assert framed(read_trajectories(tmp_path / "a" / "policy-1.jsonl"), codec)
    off = ["protocol=tags", "--out", str(tmp_path / "b"), "--json"]
    assert CliRunner().invoke(app, ["eval", *options, *off]).exit_code == 0
    assert not framed(read_trajectories(tmp_path / "b" / "policy-1.jsonl"), codec)


def test_training_in_the_frame_is_exact_on_rewritten_contexts(trained: Path):
    options = [str(trained / "config.toml"), "budget.completion_extra=40", "--limit", "1", "--attempts", "2"]
    result = CliRunner().invoke(app, ["verify", *options, "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["steered"] and printed["turns"] == 8
    assert {check["verdict"] for check in printed["checks"]} == {"passed"}


def test_a_chat_template_is_removed_from_a_context_wherever_it_is():
    template = ChatTemplate((1, 2), (3, 4))
    assert template.without((*template.around((7, 8, 3)), 9, 3, 4)) == (7, 8, 3, 9, 3, 4)
    assert ChatTemplate().without((5, 6)) == (5, 6)


def test_a_model_made_by_the_recipe_has_no_template():
    made = Recipe(model=ModelConfig(new=TinyModel()), tasks=SMALL, protocol=Protocol(kind="framed"))
    with pytest.raises(UserError, match=r"protocol = framed, but a new model has no chat template"):
        make_policy(made)


def templated(folder: Path, template: str, chat: Path) -> Path:
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((chat / name).read_bytes())
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "runs for more than 0.2 s"),
        ("{{ 'x' * 200000 }}{{ messages[0].content }}", "writes 200,023 characters around a prompt"),
        ("{{ messages[0].role }}", "leaves out the user.s message"),
        ("{{ messages.__class__.__mro__ }}", "is unsafe"),
        ("{{ raise_exception('no users\n\nhere') }}", "^[^\n]* has no usable chat template: no users here$"),
    ],
)
def test_a_template_cannot_run_for_ever_write_without_end_or_reach_python(
    template: str, message: str, tmp_path: Path, chat: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mem1.engines.chat_template._LIMIT_S", 0.2)
    folder = templated(tmp_path / "folder", template, chat)
    with pytest.raises(UserError, match=message):
        ChatTemplate.load(folder, Codec.load(folder))


def test_code_that_a_tokenizers_folder_asks_to_run_is_never_run(tmp_path: Path, chat: Path):
    folder = templated(tmp_path / "folder", CHAT_TEMPLATE, chat)
    (folder / "evil.py").write_text("raise SystemExit('run')")
    asked = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(asked))
    with pytest.raises(
        UserError, match=r"tokenizer_config\.json asks to run code of the folder .*, which mem1 never does"
    ):
        ChatTemplate.load(folder, Codec.load(folder))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_with_nan_or_infinity_are_refused_by_name(number: float, chat: Path, tmp_path: Path):
    policy = load_policy(chat)
    with torch.no_grad():
        policy.model.get_parameter("model.layers.1.mlp.up_proj.weight")[3, 5] = number
    policy.save(tmp_path)
    with pytest.raises(UserError, match=r"weights model\.layers\.1\.mlp\.up_proj\.weight contain NaN or infinity"):
        load_policy(tmp_path)
