"""`mem1 train --dry-run`: whether everything that a recipe names exists, the plan, and one small real step.

Checks the model, the tasks, what they search and the disk. It writes nothing, builds no index, and sends a server only
one request.

The step is one of each stage, with a tiny model of the recipe's family on invented tasks. The model has random weights
and earns no reward, so attempts get alternating rewards of 1 and 0 to learn from. An expert's attempt shows that the
environment answers. The only file written is a checkpoint in a temporary folder, which is read back.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mem1.dialogue import Dialogue
from mem1.endpoint.runs import MADE_BY, AgentConfig
from mem1.engines.codec import NAMED, REFUSED, Codec, check_words, unknown_share, unknown_words
from mem1.engines.config import STAND_IN
from mem1.engines.device import Computed
from mem1.envs.atlas import AtlasTasks
from mem1.envs.tasks import QuestionTasks, TasksConfig, made_tasks
from mem1.envs.webshop.tasks import WebShopTasks
from mem1.errors import UserError
from mem1.hub import hub_name, not_here
from mem1.model_folder import asset
from mem1.packing.attention import unpackable
from mem1.planning.models import made_model, recipe_codec, recipe_shape, small
from mem1.planning.plan import Plan, make_plan, record
from mem1.policy.folders import SHIPPED, policy_folder
from mem1.policy.policy import Policy, load_config
from mem1.policy.protocol import resolve
from mem1.protocol import ACT, NOTE, OPEN, RECALL, SUMMARY, Tags
from mem1.recipe.protocol import TAGS
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl, ServerRollouts
from mem1.recipe.supervised import Sft
from mem1.records import Group, Task
from mem1.rollout import Budget
from mem1.run_folder import RunFolder, check_free, read_resolved
from mem1.training.monitoring.writers import check_writers
from mem1.training.ranks.placement import Placement
from mem1.training.recorded import read_recorded, recorded_files
from mem1.training.rl import RlStage
from mem1.training.runs.checkpoint import load_checkpoint, write_snapshot
from mem1.training.runs.resume import NOT_FINGERPRINTED, as_begun
from mem1.training.runs.snapshot import Snapshot
from mem1.training.supervised import demonstrate
from mem1.training.train import Stage, make_rollout, make_stages

SERVER_S = 3.0
"""Seconds within which a server must answer."""
TOKENS = 1024
"""Most tokens of a step and of a pack."""
WRITTEN = 16
"""Tokens of a completion, which a random model never ends itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement of a run."""

    name: str
    key: str
    """Key of the recipe, or option of the command, that sets it."""
    ok: bool
    detail: str
    """What was found, or what is missing and what to do."""


def checks(config: Recipe, *, disk: int, out: Path, evaluate: bool = True, resume: bool = False) -> list[Check]:
    """All of them; `disk` are the bytes that the run's folder `out` will hold.

    evaluate    the policy is evaluated
    resume      the folder may hold the run
    """
    rollout, sft, agent = config.rollout, config.sft, config.agent
    tasks = _checked("tasks", "[tasks]", lambda: _tasks(config))
    return [
        _checked("model", "model.path", lambda: _model(config)),
        _checked("tokenizer", "model.path", lambda: _tokenizer(config)),
        tasks,
        *([_checked("evaluation", "[evaluation]", lambda: check_evaluation(config))] if evaluate and tasks.ok else []),
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
        _checked("folder", "--out", lambda: _goes_on(config, out) if resume else _free(out)),
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
        raise UserError(
            not_here(str(folder))
            or f"{folder} has no config.json; put the model's folder there, or set model.path=FOLDER"
        )
    hub = hub_name(config.model.path or SHIPPED)
    if hub is not None:
        hub.check_weights()
    elif not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has no *.safetensors file; mem1 loads weights from safetensors only")
    name = folder.name if hub is None else hub.repo
    if config.sft is not None or (config.rl is not None and config.rl.packed):
        from transformers import AutoModelForCausalLM

        found = load_config(folder)
        with torch.device("meta"):
            why = unpackable(AutoModelForCausalLM.from_config(found, trust_remote_code=False))
        return f"{name}: can be packed exactly" if not why else f"{why}; it is trained one context a row"
    return name


def _tokenizer(config: Recipe) -> str:
    folder = _folder(config)
    if folder is None:
        return "made by the recipe"
    if not (folder / "tokenizer.json").is_file():
        raise UserError(not_here(str(folder)) or f"{folder} has no tokenizer.json; copy it there with the model")
    speaks = resolve(config)
    speaks.dialogue(Codec.load(folder), folder)
    return f"there; protocol: {speaks}"


def _tasks(config: Recipe) -> str:
    """Draw a task of each size, as a run does before its first step."""
    speaks = resolve(config)
    tasks, tags = speaks.tasks, speaks.tags
    if config.evaluation.every:
        tasks.development()  # raises where there are none
    if (found := tasks.check_tasks()) is not None:
        return found
    trains = config.sft is not None or config.rl is not None
    source = tasks.sample().source("train" if trains else "evaluation", tags)
    sizes = sorted(set(_sizes(config)))
    codec = recipe_codec(config)
    for objectives in sizes:
        drawn = made_tasks(source, objectives=objectives, count=1, seed=config.seed)
        if codec is not None:
            check_words(codec, drawn, tags, whose=config.model.name)
            if config.agent is None:
                _check_room(config, speaks.dialogue(codec, _folder(config) or Path()), drawn[0])
        # question domains measure exact match and F1, and making their environment may build an index
        if config.rl is not None and config.agent is None and not isinstance(config.tasks, QuestionTasks):
            config.rl.algorithm.check(drawn[0], partial(tasks.measured, source, drawn[0], tags))
    return f"drawn with {', '.join(map(str, sizes))} objectives"


def _check_room(config: Recipe, dialogue: Dialogue, task: Task) -> None:
    """Raises UserError where no attempt at the task can begin."""
    prompt, room = len(dialogue.prompt(task)), config.budget.completion(task.objectives, general=dialogue.general(task))
    if prompt + room > config.budget.context:
        raise UserError(
            f"no attempt at {task.objectives} objectives can begin: its prompt has {prompt:,} tokens and a completion "
            f"may have {room:,}, more than budget.context = {config.budget.context:,}; raise it"
        )


def check_evaluation(config: Recipe) -> str:
    """Draw the tasks that [evaluation] measures after a training. Raises UserError where there are too few."""
    speaks = resolve(config)
    if (found := speaks.tasks.check_tasks()) is not None:
        return found
    source = speaks.tasks.sample().source("evaluation", speaks.tags)
    asked = config.evaluation
    for objectives in asked.objectives:
        try:
            source.tasks(objectives=objectives, count=asked.count(objectives), seed=asked.seed)
        except UserError as error:
            raise UserError(
                f"no evaluation of {objectives} objectives can be made: {error}; change evaluation.objectives or "
                "evaluation.tasks, or train with --no-evaluate"
            ) from error
    return f"drawn with {', '.join(map(str, asked.objectives))} objectives"


def _results(config: Recipe) -> str:
    """Encode a sample of what the environment replies."""
    codec, shown = recipe_codec(config), config.tasks.results()
    if codec is None or not shown:
        return "not known before the run"
    share = unknown_share(codec, shown, resolve(config).tags)
    finding = unknown_words(share, "results", config.model.name)
    if share >= REFUSED:
        raise UserError(finding)
    return finding if share >= NAMED else "the tokenizer knows their words"


def _agent(agent: AgentConfig) -> str:
    """Import the agent's function, or look for its program."""
    agent.runs()
    return f"{agent.name.removeprefix(MADE_BY)}, {agent.concurrency} attempts at a time"


def _trajectories(config: Recipe, sft: Sft) -> str:
    """Read the recorded attempts, as a run does before its first step; a new model has no tokenizer yet."""
    folder = _folder(config)
    if folder is None:
        return f"{len(recorded_files(sft))} files, to be encoded for the recipe's new model"
    return str(read_recorded(sft, resolve(config).dialogue(Codec.load(folder), folder)))


def _sizes(config: Recipe) -> Iterator[int]:
    yield from config.demonstrated
    if config.rl is not None:
        yield from (n for phase in config.rl.curriculum for n in phase.objectives)
    elif not config.demonstrated:
        yield from config.evaluation.objectives


def _servers(rollout: ServerRollouts) -> str:
    """Check that all servers of the policy answer, or that the run's own can be started; only training shows whether
    they accept new weights."""
    if rollout.launch is not None:
        return f"the run starts vLLM with {rollout.launch.check()}"
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


def _free(out: Path) -> str:
    check_free(out)
    return "free"


def _goes_on(config: Recipe, out: Path) -> str:
    if not (out / "config.toml").is_file():
        return _free(out)
    # on whatever device: this machine may not be the one that goes on
    known = (read_resolved(out).get("computed") or [{"dtype": "float32"}])[-1]
    RunFolder.open(out, as_begun(config, out, Computed(device="", dtype=known["dtype"])), exclude=NOT_FINGERPRINTED)
    return "holds the same run"


def _disk(needed: int, out: Path) -> str:
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:,.1f} GB free, {needed / 1e9:,.1f} needed"
    if free < needed:
        raise UserError(f"{found} for checkpoints; free some space or set another --out")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Results of the steps."""

    expert_turns: int
    """Turns of the expert's longest attempt."""
    stages: Mapping[str, float]
    """Stage -> loss of its step."""
    tokenizer: str
    """Description of the tokenizer: the recipe's, or one that stands in."""


def rehearse(config: Recipe) -> Rehearsed:
    """Run the steps. Raises UserError where a part of the recipe cannot work, RuntimeError where no weight changed."""
    codec, whose = recipe_codec(config), "the recipe's"
    if codec is None:
        codec, whose = Codec.load(asset(STAND_IN)), "one that stands in"
    shape = small(recipe_shape(config)[0], vocab_size=codec.vocab_size)
    policy = Policy(made_model(shape, seed=config.seed), codec)
    shown = _shown(config)
    speaks = resolve(shown)
    source = speaks.tasks.source("train", speaks.tags)
    attempts = demonstrate(speaks.applied(shown), make_rollout(shown, policy, source), source, speaks.tags)
    losses: dict[str, float] = {}
    placement = Placement(lora=config.lora, applied=config.lora is not None)
    for stage in (make() for tiny in _tiny(config) for make in make_stages(tiny, policy, placement)):
        before = [parameter.clone() for parameter in stage.model.parameters()]
        losses[stage.name] = _step(stage)
        if all(torch.equal(a, b) for a, b in zip(before, stage.model.parameters(), strict=True)):
            raise RuntimeError(f"the step of [{stage.name}] changed no weight")
        _round_trip(stage)
        placement.hand_back(stage.model, policy.model)
    return Rehearsed(expert_turns=max(len(t.turns) for t in attempts), stages=losses, tokenizer=whose)


def _objectives(config: Recipe) -> tuple[int]:
    """The smallest size of the recipe's tasks."""
    if config.rl is not None:
        return (min(n for phase in config.rl.curriculum for n in phase.objectives),)
    return (min(config.demonstrated or config.evaluation.objectives),)


def _shown(config: Recipe) -> Recipe:
    """The recipe for the expert, with room for its texts under any tokenizer."""
    demonstrated = {"trajectories": None, "tasks": 2, "objectives": _objectives(config), "cut_short": 0.0}
    sft, tags = (config.sft or Sft()).model_copy(update=demonstrated), resolve(config).tags
    has = {*tags.action_tags, *((NOTE,) if tags.note is not None else ())}
    # the expert writes tags; that the template can be used is a check of its own
    tagged = {"kind": TAGS, "add": tuple(kind for kind in (ACT, OPEN, SUMMARY, RECALL, NOTE) if kind in has)}
    return config.model_copy(
        update={
            "tasks": config.tasks.small() or _stand_in(tags),
            "workers": 1,
            "protocol": config.protocol.model_copy(update=tagged),
            "agent": None,  # likewise
            "evaluation": config.evaluation.model_copy(update={"every": 0}),
            "budget": Budget(completion_extra=400, context=config.budget.context + 8192),
            "sft": sft,
        }
    )


def _stand_in(tags: Tags) -> TasksConfig | None:
    """Tasks of ours with an expert who knows the actions of the tags."""
    return WebShopTasks(prompt="plain").small() if ACT in tags.action_tags else AtlasTasks().small()


def _tiny(config: Recipe) -> Iterator[Recipe]:
    """One small step of each of the recipe's stages; the expert writes more than a sampled attempt may."""
    shown = _shown(config)
    small = {"steps": 1, "tokens": TOKENS}
    recall = config.recall and config.recall.model_copy(update=small)
    sft = config.sft and shown.sft and shown.sft.model_copy(update={**small, "pack_tokens": TOKENS})
    yield shown.model_copy(update={"recall": recall, "sft": sft, "rl": None})
    if config.rl is not None:
        budget = Budget(completion_per_objective=0, completion_extra=WRITTEN, context=config.budget.context + 8192)
        rl = _tiny_rl(config.rl, _objectives(config))
        yield shown.model_copy(update={"recall": None, "sft": None, "rl": rl, "budget": budget})


def _tiny_rl(rl: Rl, objectives: tuple[int]) -> Rl:
    size = max(2, rl.algorithm.min_attempts_per_task) if rl.group_size > 1 else 1
    return rl.model_copy(
        update={
            "curriculum": (Phase(steps=1, objectives=objectives),),
            "tasks_per_step": 2,
            "group_size": size,
            "minibatches": min(rl.minibatches, 2),
            "pack_tokens": min(rl.pack_tokens, TOKENS),
            "warmup": 0,
            "algorithm": rl.algorithm.rehearsal(),
        }
    )


def _step(stage: Stage) -> float:
    """Run one step; returns its loss."""
    metrics = stage.update(_rewarded(stage.sample(0)), 0) if isinstance(stage, RlStage) else stage.step(0)
    loss = metrics["loss"]
    if not isinstance(loss, float) or not torch.isfinite(torch.tensor(loss)):
        raise UserError(f"the step of [{stage.name}] has a loss of {loss}")
    return loss


def _rewarded(groups: Sequence[Group]) -> list[Group]:
    """Alternating rewards of 1 and 0 over all attempts."""
    rewards = itertools.cycle((1.0, 0.0))
    return [Group(trajectories=tuple(replace(t, reward=next(rewards)) for t in g.trajectories)) for g in groups]


def _round_trip(stage: Stage) -> None:
    """Write and read a checkpoint."""
    with tempfile.TemporaryDirectory(prefix="mem1-rehearsal-") as folder:
        members = stage.optimizers.members
        snapshot = Snapshot.take(1, stage.model, members, modules=stage.modules, fingerprint="rehearsal")
        path = write_snapshot(folder, snapshot)
        load_checkpoint(path, stage.model, members, modules=stage.modules, fingerprint="rehearsal")


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


def dry_run(config: Recipe, *, out: Path, evaluate: bool = True, resume: bool = False) -> DryRun:
    """Plan a recipe, look whether what it names is there, and rehearse a step; `out` is where a run would write.

    `evaluate`: it would evaluate the policy, too; `resume`: it would go on with the run in that folder.

    Raises UserError where the recipe has no stage, its model's shape is not known, or its stages cannot work.
    """
    plan = make_plan(config)
    found = checks(config, disk=plan.disk, out=out, evaluate=evaluate, resume=resume)
    return DryRun(plan=plan, checks=tuple(found), rehearsed=rehearse(config))
