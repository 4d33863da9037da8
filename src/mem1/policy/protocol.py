"""How a policy speaks, resolved once: from the recipe's [protocol] and what the folder of its model says.

    speaks = resolve(recipe)
    str(speaks)                                      "tools (paper), prompt tools: the chat template has tools"
    speaks.tasks.source("train", speaks.tags)        tasks whose prompt fits
    speaks.dialogue(codec, folder)                   how turns become tokens

A folder that mem1 has saved holds the protocol of its policy in `protocol.json`; with any other, the chat template
decides. Nothing is loaded but small files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.dialogue import Dialogue, NativeDialogue, TagDialogue
from mem1.engines.chat_template import ChatTemplate, template_text, template_tokenizer
from mem1.engines.tool_calls import call_format
from mem1.envs.tasks import TasksConfig
from mem1.errors import UserError
from mem1.memory import MemoryPolicy, memory_policy
from mem1.policy.folders import SHIPPED, policy_folder, tokenizer_folder
from mem1.protocol import NOTE, OPEN, RECALL, SUMMARY, TAG_SETS, Tags
from mem1.recipe.protocol import AUTO, FRAMED, TAGS, TOOLS
from mem1.recipe.recipe import Recipe
from mem1.rollout import check_memory

if TYPE_CHECKING:
    from mem1.engines.chat_messages import ChatMessages
    from mem1.engines.codec import Codec

SAVED = "protocol.json"
"""The file in a policy's folder that says how it was trained to speak."""


@dataclass(frozen=True, kw_only=True)
class ResolvedProtocol:
    """How a policy speaks on the tasks of a recipe."""

    kind: str = TAGS
    """tags, framed, or a way of calling tools."""
    tags: Tags
    tasks: TasksConfig = field(default_factory=TasksConfig)
    """Those of the recipe, with the prompt that they have."""
    thoughts: Any = "drop"
    template: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    in_messages: bool = False
    """Whether an agent makes the contexts, of messages, also where the kind is tags."""
    because: str = ""

    def __str__(self) -> str:
        prompt = getattr(self.tasks, "prompt", None)
        prompt = "" if prompt is None else f", prompt {prompt if isinstance(prompt, str) else prompt.file}"
        return f"{self.kind} ({self.tags.name}){prompt}: {self.because}"

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with the tasks as they are worded."""
        return recipe.model_copy(update={"tasks": self.tasks})

    @property
    def calls_tools(self) -> bool:
        return self.kind not in (TAGS, FRAMED)

    def messages(self, codec: Codec, source: Path | Any, where: str = "") -> ChatMessages:
        """How messages are written; `source`: the model's folder, or its transformers tokenizer from `where`.

        Raises UserError where the template cannot be used.
        """
        from mem1.engines.chat_messages import ChatMessages

        if not self.calls_tools:
            return ChatMessages.in_tags(codec, self.tags)
        tokenizer, where = (template_tokenizer(source), str(source)) if isinstance(source, Path) else (source, where)
        calls = call_format(self.kind)
        return ChatMessages.of(
            tokenizer, codec, where=where, calls=calls, thoughts=self.thoughts, options=self.template
        )

    def dialogue(self, codec: Codec, source: Path | Any, where: str = "") -> Dialogue:
        """The dialogue; parameters and errors as of `messages`."""
        if self.calls_tools or self.in_messages:
            return NativeDialogue(self.messages(codec, source, where), self.tags)
        if self.kind == TAGS:
            return TagDialogue(codec, self.tags)
        frame = ChatTemplate.load(source, codec) if isinstance(source, Path) else None
        return TagDialogue(codec, self.tags, frame or ChatTemplate.of(source, codec, where=where))

    def record(self) -> dict[str, Any]:
        """As JSON, for the folder of a policy and the records of a run."""
        prompt = getattr(self.tasks, "prompt", None)
        return {
            "kind": self.kind,
            "tags": asdict(self.tags),
            "thoughts": self.thoughts,
            "template": dict(self.template),
            "prompt": prompt if isinstance(prompt, str) else None,
        }


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a model before it is loaded."""

    where: str = "the model"
    saved: Mapping[str, Any] | None = None
    """The protocol that it was trained with (`ResolvedProtocol.record`); None: mem1 has not saved it."""
    tags: Tags | None = None
    """The tags that it was trained with, or that are tokens of its own; None: neither."""
    template: str = ""
    """The text of its chat template; empty: there is none to use."""
    lacks: str = ""
    """Why there is none; empty: its folder is not here."""
    general: bool = False
    """Whether it needs instructions, as mem1 has not trained it."""

    @classmethod
    def at(cls, folder: Path) -> Known:
        """What a folder says. Raises UserError where its protocol cannot be read."""
        template = template_text(folder)
        here = (folder / "tokenizer.json").is_file()
        lacks = f"{folder} has no chat template" if here and not template else ""
        found = cls(where=str(folder), template=template, lacks=lacks)
        try:
            saved = json.loads((folder / SAVED).read_text(encoding="utf-8"))
            actions = tuple((kind, tag) for kind, tag in saved["tags"]["actions"])
            return replace(found, saved=saved, tags=Tags(**{**saved["tags"], "actions": actions}))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{folder / SAVED} cannot be read ({error}); copy the policy again") from error
        if template or not here:
            return replace(found, general=True)
        own = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")).get("added_tokens", ())
        tokens = {token["content"] for token in own}
        tags = next((tags for tags in TAG_SETS.values() if tokens.issuperset(f"<{name}>" for name in tags.names)), None)
        return replace(found, tags=tags, general=tags is None)

    @classmethod
    def of(cls, recipe: Recipe) -> Known:
        """What is known of the recipe's model, wherever it runs."""
        if recipe.model.new is not None:
            return cls(where="a new model", lacks="a new model has no chat template")
        elsewhere = recipe.engine.remote_engine(recipe.model.path)
        if elsewhere is None:
            return cls.at(policy_folder(recipe.model.path or SHIPPED))
        config, default = elsewhere
        if recipe.engine.kind != "server":
            return cls(where=config.name, lacks="no model answers")
        known = cls.at(tokenizer_folder(config.tokenizer, default or SHIPPED))
        if getattr(config, "endpoint", "") == "chat":
            return replace(known, template="", lacks="at /chat/completions the server applies its own chat template")
        return known


def resolve(recipe: Recipe, known: Known | None = None) -> ResolvedProtocol:
    """How the model speaks under this recipe; `known`: None is what its folder says.

    What the recipe leaves open follows from how the policy was trained, else from its chat template; tags follow from
    memories and tasks, too. Raises UserError where these contradict one another, naming both.
    """
    known = known or Known.of(recipe)
    given, agent = recipe.protocol, recipe.agent
    policies = _memories(recipe)
    asked = {kind: f"the memory {policy.name}" for policy in policies for kind in policy.asks & {SUMMARY, RECALL, NOTE}}
    asked |= dict.fromkeys(recipe.tasks.asks, f"tasks.kind = {recipe.tasks.kind}")
    kind, because = _kind(recipe, known, noting=NOTE in asked)
    tags = _tags(recipe, known, asked)
    for policy in policies:
        check_memory(policy, tags, in_tags=kind in (TAGS, FRAMED))
    saved = known.saved if known.saved is not None and kind == known.saved["kind"] else {}
    return ResolvedProtocol(
        kind=kind,
        tags=tags,
        tasks=_worded(recipe, kind, tags, known),
        thoughts=given.thoughts if "thoughts" in given.model_fields_set else saved.get("thoughts", given.thoughts),
        template=given.template or saved.get("template", {}),
        in_messages=agent is not None,
        because=because,
    )


def _memories(recipe: Recipe) -> list[MemoryPolicy]:
    """All memories of a recipe. Raises UserError where an agent makes the contexts and a memory is named, too."""
    if recipe.agent is not None:
        if recipe.memory != "constant":
            raise UserError("[agent] makes its own contexts: leave out memory, or give agent.memory")
        return []
    shown = recipe.sft.memories if recipe.demonstrated and recipe.sft is not None else ()
    return [memory_policy(name) for name in dict.fromkeys((recipe.memory, *shown))]


def _kind(recipe: Recipe, known: Known, *, noting: bool) -> tuple[str, str]:
    """The kind, and why it is this one."""
    given, agent, saved = recipe.protocol.kind, recipe.agent is not None, known.saved
    calls, trained = given not in (AUTO, TAGS, FRAMED), "" if saved is None else f"protocol = {saved['kind']}"
    if agent and FRAMED in (given, saved["kind"] if saved is not None and given == AUTO else ""):
        raise UserError(
            "[agent] speaks in messages, and protocol = framed continues one message"
            + (f", as {known.where} was trained to" if given == AUTO else "")
            + "; give protocol=tools"
        )
    if calls and recipe.demonstrated:
        raise UserError(
            f"protocol = {given}: the expert demonstrates in tags; give sft.trajectories, or leave out [sft]"
        )
    if given not in (AUTO, TAGS) and known.lacks:
        but = f"; it was trained with {trained}" if trained else ""
        raise UserError(f"protocol = {given}, but {known.lacks}{but}; give protocol=tags, or another model")
    if given != AUTO:
        other = saved is not None and saved["kind"] != given
        return given, f"as the recipe says, although trained with {trained}" if other else "as the recipe says"
    if saved is not None:
        return saved["kind"], f"as {Path(known.where).name} was trained"
    if not known.template:
        return TAGS, known.lacks or f"{known.where} is not here"
    has_tools = "<tool_call>" in known.template and "tools" in known.template
    prompt = getattr(recipe.tasks, "prompt", None)
    in_tags = recipe.protocol.says_tags or noting or bool(recipe.demonstrated)
    if agent or (has_tools and not in_tags and not (prompt is not None and recipe.tasks.explains_tags)):
        return TOOLS, "its chat template has tools" if has_tools else "it has a chat template, and [agent] calls tools"
    return FRAMED, "it has a chat template"


def _tags(recipe: Recipe, known: Known, asked: Mapping[str, str]) -> Tags:
    """The tags; `asked`: kind of a tag -> who asks for it."""
    given = recipe.protocol
    if known.saved is None or given.base is not None or recipe.sft is not None:
        return given.tags(known.tags, asked)
    asked = {kind: who for kind, who in asked.items() if kind != OPEN}  # a search shows something without pages, too
    tags = given.tags(known.tags, asked)
    said = given.tags(known.tags, ())
    for kind, who in asked.items():
        if kind in tags.action_tags.keys() - said.action_tags.keys() or (kind == NOTE and said.note is None):
            raise UserError(
                f"{who} asks for a tag that {known.where} was not trained with (its tags are {said.name}): {kind}; "
                f"choose another, or add the tag nevertheless with 'protocol.add=[\"{kind}\"]'"
            )
    return tags


def _worded(recipe: Recipe, kind: str, tags: Tags, known: Known) -> TasksConfig:
    """The tasks with their prompt: the recipe's own, that of the training, or one that says how to speak, unless
    demonstrations do."""
    tasks = recipe.tasks
    prompt = getattr(tasks, "prompt", None)
    if "prompt" not in type(tasks).model_fields:
        return tasks
    native = kind not in (TAGS, FRAMED)
    if prompt is not None:
        if native and tasks.explains_tags and isinstance(prompt, str):
            raise UserError(f"protocol = {kind}: the prompt {prompt!r} explains tags; leave out tasks.prompt")
        return tasks
    saved = known.saved
    if saved is not None and saved["prompt"] and saved["kind"] == kind:
        return tasks.model_copy(update={"prompt": saved["prompt"]})
    instructed = native or (known.general and not recipe.demonstrated)
    chosen = tasks.instructions(tags, calls=native) if instructed else tasks.own_prompt(tags)
    return tasks.model_copy(update={"prompt": chosen})
