"""How a policy speaks follows from its folder, the recipe, the memories and the tasks; what contradicts is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import CHAT_TEMPLATE, chat_folder
from chat_templates import QWEN25_LIKE
from native_models import model_folder
from tag_sets import PAPER_NOTES, PAPER_SHOP, PAPER_SUMMARY, PAPER_WEB
from typer.testing import CliRunner

from mem1.api import load_recipe
from mem1.cli.main import app
from mem1.dialogue import NativeDialogue
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.evaluation.store import read_made_by
from mem1.policy.policy import load_policy
from mem1.policy.protocol import SAVED, Known, ResolvedProtocol, resolve
from mem1.protocol import PAPER, PUBLISHED
from mem1.trajectory_files import read_trajectories

SMALL = ("tasks.worlds=1", "tasks.entities=40", "budget.completion_extra=4", "budget.completion_per_objective=0")


def resolved(*overrides: str, recipe: str = "atlas-quick") -> ResolvedProtocol:
    return resolve(load_recipe(recipe, *overrides))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chat template has tools."""
    return model_folder(tmp_path_factory.mktemp("models") / "tools", QWEN25_LIKE)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chat template has none."""
    return chat_folder(tmp_path_factory.mktemp("models") / "chat")


@pytest.mark.parametrize(
    ("overrides", "kind", "prompt"),
    [
        ((), "tools", "tools"),
        (("memory=notes",), "framed", "notes-example"),
        (("protocol.base=released",), "framed", "mem1-example"),
        (("tasks.prompt=mem1",), "framed", "mem1"),
        (("protocol=tags",), "tags", "mem1-example"),
        (("protocol=framed", "memory=full"), "framed", "mem1-example"),
        (("sft={}",), "framed", "plain"),
    ],
)
def test_a_model_with_a_chat_template_is_spoken_to_through_it(
    tools: Path, overrides: tuple[str, ...], kind: str, prompt: str
):
    speaks = resolved(f"model.path={tools}", *overrides)
    assert (speaks.kind, getattr(speaks.tasks, "prompt", None)) == (kind, prompt)


def test_without_tools_in_the_template_the_tags_are_framed_and_explained_by_an_example(chat: Path):
    speaks = resolved(f"model.path={chat}")
    assert (speaks.kind, speaks.because) == ("framed", "it has a chat template")
    (task,) = speaks.tasks.source("evaluation", speaks.tags).tasks(objectives=1, count=1, seed=0)
    assert "<IS> Q1 Alvex sits in Oslo; still needed: the mayor of Oslo. </IS>\n<query> mayor of Oslo </query>" in (
        task.prompt
    )


def evaluated(folder: Path, out: Path, *more: str) -> tuple[str, list[int]]:
    """What is said, and the head of the first context."""
    sizes = ("--limit", "1", "--objectives", "1", "--json", "--out", str(out))
    done = CliRunner().invoke(app, ["eval", "--model", str(folder), *SMALL, *sizes, *more])
    assert done.exit_code in (0, 1), done.output
    (attempt,) = read_trajectories(out / f"{folder.name}-1.jsonl")
    return done.stderr, list(attempt.turns[0].context_ids)


def test_an_instruct_model_is_never_evaluated_without_its_template_unless_told_so(
    tools: Path, chat: Path, tmp_path: Path
):
    for folder, kind in ((tools, "tools (paper), prompt tools"), (chat, "framed (paper), prompt mem1-example")):
        codec = Codec.load(folder)
        said, context = evaluated(folder, tmp_path / folder.name)
        assert f"protocol: {kind}" in " ".join(said.split())
        assert codec.decode(context).startswith("<|im_start|>")
        recorded = read_made_by(tmp_path / folder.name)[folder.name]["protocol"]
        assert recorded["kind"] == kind.split(" ")[0] and recorded["tags"]["name"] == "paper"
    _, context = evaluated(chat, tmp_path / "plain", "protocol=tags")
    assert not Codec.load(chat).decode(context).startswith("<|im_start|>")


@pytest.mark.parametrize(
    ("policy", "tags", "prompt"),
    [
        ("shipped", PAPER, "plain"),
        ("shipped-notes", PAPER_NOTES, "ordered"),
        ("shipped-memories", PAPER_SUMMARY, "ordered"),
    ],
)
def test_a_folder_of_ours_says_how_it_was_trained(policy: str, tags: object, prompt: str):
    speaks = resolved(f"model.path={policy}")
    assert (speaks.kind, speaks.tags, getattr(speaks.tasks, "prompt", None)) == ("tags", tags, prompt)


def test_a_policy_is_saved_with_its_protocol_and_read_with_it(tmp_path: Path):
    speaks = ResolvedProtocol(kind="framed", tags=PUBLISHED, template={"a": 1}, thoughts="keep")
    (tmp_path / SAVED).write_text(json.dumps(speaks.record()))
    known = Known.at(tmp_path)
    assert (known.tags, known.general) == (PUBLISHED, False)
    assert known.saved == json.loads(json.dumps(speaks.record()))
    (tmp_path / SAVED).write_text('{"kind": "tags"}')
    with pytest.raises(UserError, match=r"protocol\.json cannot be read .*copy the policy again"):
        Known.at(tmp_path)


def test_a_tag_that_a_policy_was_not_trained_with_is_named_with_who_asks_for_it():
    with pytest.raises(
        UserError, match=r"memory notes asks for a tag that .*atlas-warm-start was not trained with .*note"
    ):
        resolved("memory=notes")
    assert resolved("memory=notes", 'protocol.add=["note"]').tags == PAPER_NOTES
    with pytest.raises(UserError, match=r"tasks\.kind = webshop asks for a tag .*its tags are paper.*: act"):
        resolved("tasks={kind='webshop'}")


def test_tags_of_a_new_policy_follow_from_memories_and_tasks():
    new = "model={new={}}"
    assert resolved(new, "memory=notes").tags == PAPER_NOTES
    assert resolved(new, "sft.memories=['constant','summary(9)']").tags == PAPER_SUMMARY
    assert resolved(new, "tasks={kind='webshop'}").tags == PAPER_SHOP
    web = "tasks={kind='web',questions='q.jsonl',api='searxng',cache='c'}"
    assert (resolved(new, web).tags, resolved(new, web).tasks.own_prompt(PAPER_WEB)) == (PAPER_WEB, "web")


def test_what_the_recipe_says_wins_over_the_training_and_is_told(tools: Path, tmp_path: Path):
    folder = model_folder(tmp_path / "mine", QWEN25_LIKE)
    (folder / SAVED).write_text(json.dumps(ResolvedProtocol(kind="framed", tags=PAPER_SUMMARY).record()))
    own = resolved(f"model.path={folder}")
    assert (own.kind, own.tags, own.because) == ("framed", PAPER_SUMMARY, "as mine was trained")
    other = resolved(f"model.path={folder}", "protocol={kind='tools',base='released'}")
    assert (other.kind, other.tags.name) == ("tools", "released")
    assert other.because == "as the recipe says, although trained with protocol = framed"


def test_what_a_server_applies_itself_is_not_applied_twice(tools: Path):
    server = ("engine.kind=server", "engine.urls=['http://127.0.0.1:9/v1']", "engine.model=m")
    speaks = resolved(*server, f"engine.tokenizer={tools}")
    assert speaks.kind == "tools"
    speaks = resolved(*server, f"engine.tokenizer={tools}", "engine.endpoint=chat")
    assert (speaks.kind, getattr(speaks.tasks, "prompt", None)) == ("tags", "mem1-example")
    assert speaks.because == "at /chat/completions the server applies its own chat template"


def test_an_agent_speaks_in_messages(tools: Path, chat: Path):
    agent = "agent.entry=builtins:print"
    assert resolved(agent, f"model.path={chat}").kind == "tools"
    speaks = resolved(agent)
    assert (speaks.kind, speaks.in_messages) == ("tags", True)
    policy = load_policy("shipped")
    assert isinstance(policy.dialogue(speaks), NativeDialogue)
    with pytest.raises(UserError, match=r"\[agent\] speaks in messages, and protocol = framed continues one message"):
        resolved(agent, f"model.path={tools}", "protocol=framed")
    with pytest.raises(UserError, match=r"\[agent\] makes its own contexts: leave out memory, or give agent\.memory"):
        resolved(agent, "memory=full")


def test_a_template_of_several_names_is_one_too(tmp_path: Path):
    several = [{"name": "default", "template": CHAT_TEMPLATE}, {"name": "tool_use", "template": QWEN25_LIKE}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert "<tool_call>" in Known.at(tmp_path).template
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert Known.at(tmp_path).template == ""
    assert (Known.at(tmp_path / "nowhere").lacks, Known.at(tmp_path / "nowhere").general) == ("", True)
