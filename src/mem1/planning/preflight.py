"""`mem1 train --dry-run`: whether everything that a recipe names exists, the plan, and one small real step.

Checks the model, the tasks, what they search and the disk. It writes nothing, builds no index, and sends a server only
one request.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mem1.dialogue import Dialogue, open_dialogue
from mem1.endpoint.config import MADE_BY, AgentConfig
from mem1.engines.codec import NAMED, REFUSED, Codec, check_words, unknown_share, unknown_words
from mem1.envs.tasks import QuestionTasks
from mem1.errors import UserError
from mem1.packing.attention import check_packable
from mem1.planning.plan import Plan, make_plan, record
from mem1.planning.smoke_step import Rehearsed, rehearse
from mem1.policy.folders import SHIPPED, policy_folder
from mem1.policy.tokenizers import words_of
from mem1.protocol import vocabulary
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.recipe.supervised import Sft
from mem1.training.monitoring.writers import check_writers
from mem1.training.recorded import read_recorded, recorded_files

SERVER_S = 3.0
"""Seconds within which a server must answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement of a run."""

    name: str
    key: str
    """Key of the recipe, or option of the command, that sets it."""
    ok: bool
    detail: str
    """What was found, or what is missing and what to do."""


def checks(config: Recipe, *, disk: int, out: Path) -> list[Check]:
    """All of them; `disk` are the bytes that the run's folder `out` will hold."""
    rollout, sft, agent = config.rollout, config.sft, config.agent
    return [
        _checked("model", "model.path", lambda: _model(config)),
        _checked("tokenizer", "model.path", lambda: _tokenizer(config)),
        _checked("tasks", "[tasks]", lambda: _tasks(config)),
        *(
            [_checked("trajectories", "sft.trajectories", lambda: _trajectories(config, sft))]
            if sft and sft.trajectories
            else []
        ),
        _checked("search", "[tasks]", config.tasks.check_search),
        _checked("results", "[tasks]", lambda: _results(config)),
        *([_checked("agent", "[agent]", lambda: _agent(agent))] if agent is not None else []),
        *(
            [_checked("servers", "rollout.servers", lambda: _servers(rollout))]
            if isinstance(rollout, ServerRollouts)
            else []
        ),
        *([_checked("writers", "writers", lambda: check_writers(config.writers))] if config.writers else []),
        _checked("disk", "--out", lambda: _disk(disk, out)),
    ]


def _checked(name: str, key: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name=name, key=key, ok=True, detail=look())
    except UserError as error:
        return Check(name=name, key=key, ok=False, detail=str(error))


def _folder(config: Recipe) -> Path | None:
    """Folder of the recipe's model; None: the recipe creates a new model."""
    return None if config.model.new is not None else policy_folder(config.model.path or SHIPPED)


def _model(config: Recipe) -> str:
    folder = _folder(config)
    if folder is None:
        return "made from nothing"
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json; put the model's folder there, or set model.path=FOLDER")
    if not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has no *.safetensors file; mem1 loads weights from safetensors only")
    if config.sft is not None or (config.rl is not None and config.rl.packed):
        import torch
        from transformers import AutoModelForCausalLM

        from mem1.policy.policy import load_config

        found = load_config(folder)
        with torch.device("meta"):
            check_packable(AutoModelForCausalLM.from_config(found, trust_remote_code=False))
        return f"{folder.name}: can be packed exactly"
    return folder.name


def _tokenizer(config: Recipe) -> str:
    folder = _folder(config)
    if folder is None:
        return "made by the recipe"
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} has no tokenizer.json; copy it there with the model")
    if config.model.chat_template or config.chat is not None:
        _dialogue(config, folder)
        return "there, with a chat template"
    return "there"


def _tasks(config: Recipe) -> str:
    """Draw a task of each size, as a run does before its first step."""
    tasks, tags = config.tasks, vocabulary(config.vocabulary)
    if config.evaluation.every:
        tasks.development()  # raises where there are none
    if (found := tasks.check_tasks()) is not None:
        return found
    trains = config.sft is not None or config.rl is not None
    source = tasks.few().source("train" if trains else "evaluation", tags)
    sizes = sorted(set(_sizes(config)))
    codec = _codec(config)
    for objectives in sizes:
        drawn = source.tasks(objectives=objectives, count=1, seed=config.seed)
        if codec is not None:
            check_words(codec, drawn, tags, whose=config.model.name)
        # question domains measure exact match and F1, and making their environment may build an index
        if config.rl is not None and config.agent is None and not isinstance(config.tasks, QuestionTasks):
            config.rl.algorithm.check(drawn[0], partial(config.tasks.measured, source, drawn[0], tags))
    return f"drawn with {', '.join(map(str, sizes))} objectives"


def _results(config: Recipe) -> str:
    """Encode a sample of what the environment replies."""
    codec, shown = _codec(config), config.tasks.results()
    if codec is None or not shown:
        return "not known before the run"
    share = unknown_share(codec, shown, vocabulary(config.vocabulary))
    finding = unknown_words(share, "results", config.model.name)
    if share >= REFUSED:
        raise UserError(finding)
    return finding if share >= NAMED else "the tokenizer knows their words"


def _codec(config: Recipe) -> Codec | None:
    """The tokenizer of the recipe's model; None: it is missing, or will be trained on the tasks' texts."""
    if (new := config.model.new) is not None:
        tags = vocabulary(config.vocabulary)
        return None if new.tokenizer == "bpe" else Codec(words_of(new.tokenizer, tags, new.labels))
    folder = policy_folder(config.model.path or SHIPPED)
    return Codec.load(folder) if (folder / "tokenizer.json").is_file() else None


def _agent(agent: AgentConfig) -> str:
    """Import the agent's function, or look for its program."""
    agent.runs()
    return f"{agent.name.removeprefix(MADE_BY)}, {agent.concurrency} attempts at a time"


def _trajectories(config: Recipe, sft: Sft) -> str:
    """Read the recorded attempts, as a run does before its first step; a new model has no tokenizer yet."""
    folder = _folder(config)
    if folder is None:
        return f"{len(recorded_files(sft))} files, to be encoded for the recipe's new model"
    return str(read_recorded(sft, _dialogue(config, folder)))


def _dialogue(config: Recipe, folder: Path) -> Dialogue:
    tags, framed = vocabulary(config.vocabulary), config.model.chat_template
    return open_dialogue(Codec.load(folder), tags, chat=config.chat, framed=framed, source=folder)


def _sizes(config: Recipe) -> Iterator[int]:
    yield from config.demonstrated
    if config.rl is not None:
        yield from (n for phase in config.rl.curriculum for n in phase.objectives)
    elif not config.demonstrated:
        yield from config.evaluation.objectives


def _servers(rollout: ServerRollouts) -> str:
    """Check that all servers of the policy answer; only training shows whether they accept new weights."""
    import httpx

    urls = rollout.listed()
    for url in urls:
        address = f"{url.removesuffix('/v1')}/health"
        try:
            httpx.get(address, timeout=SERVER_S, trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            raise UserError(
                f"{address} does not answer ({type(error).__name__}); start mem1 serve-policy or vLLM there, or change "
                "rollout.servers"
            ) from error
    return f"{', '.join(urls)} answers" if len(urls) == 1 else f"all {len(urls)} answer"


def _disk(needed: int, out: Path) -> str:
    there = out.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:,.1f} GB free, {needed / 1e9:,.1f} needed"
    if free < needed:
        raise UserError(f"{found} for checkpoints; free some space or set another --out")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What came out of it."""

    plan: Plan
    checks: tuple[Check, ...]
    rehearsed: Rehearsed

    @property
    def ready(self) -> bool:
        """Whether a run would find everything that it needs."""
        return all(check.ok for check in self.checks)

    def record(self) -> Mapping[str, Any]:
        """As JSON."""
        return {
            "ready": self.ready,
            "parameters": self.plan.parameters,
            "checks": [asdict(check) for check in self.checks],
            "rehearsed": asdict(self.rehearsed),
            "plan": record(self.plan),
        }


def dry_run(config: Recipe, *, out: Path) -> DryRun:
    """Plan a recipe, look whether what it names is there, and rehearse a step; `out` is where a run would write.

    Raises UserError where the recipe has no stage, its model's shape is not known, or its stages cannot work.
    """
    plan = make_plan(config)
    found = checks(config, disk=plan.disk, out=out)
    return DryRun(plan=plan, checks=tuple(found), rehearsed=rehearse(config))
