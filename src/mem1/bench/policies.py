"""Players that speak in tags: a policy in this process, or a script, through `mem1.rollout.Rollout`.

    player = policy_player("shipped")           or a folder, or "random": a small model with random weights
    player = script_player("200", state=200)    the scripted solver, whose states keep their first 200 tokens

The memory is full, constant, masked, summary(n), fold(k), window(k), none or another of `mem1.memory`. A policy that
knows no tags scores 0, and its ending says why; a model with a chat template gets its prompts in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1.bench.results import Attempt, Spent
from mem1.bench.running import Played, outline
from mem1.bench.scripted import remembers, script_of
from mem1.bench.suites import Drawn
from mem1.configuration.model import MOST_TOKENS
from mem1.dialogue import TagDialogue
from mem1.engines.base import Engine, Sampling, ScriptedEngine, new_session
from mem1.engines.codec import Codec
from mem1.engines.config import STAND_IN
from mem1.errors import UserError
from mem1.evaluation.report.token_attribution import Decode
from mem1.evaluation.report.viewer_data import told_of
from mem1.evaluation.tokens import attempt_cost, cached_by_turn, peak_tokens
from mem1.memory import memory_policy
from mem1.model_folder import asset
from mem1.prices import PriceClass
from mem1.protocol import ANSWER, MALFORMED, SUMMARY, Tags, extended
from mem1.records import Task, Trajectory, per_objective
from mem1.rollout import Budget, Rollout

if TYPE_CHECKING:
    from mem1.dialogue import Dialogue

RANDOM = "random"
"""Name of the policy with random weights."""
_TOGETHER = 64
"""Tasks of a batch."""
_SCRIPTED = Budget(context=MOST_TOKENS, completion_per_objective=200, completion_extra=2_000)


@dataclass(frozen=True)
class TagPlayer:
    """See the module."""

    name: str
    about: Mapping[str, Any]
    engine: Callable[[Drawn, Sequence[Task]], Engine]
    dialogue: Callable[[Tags], Dialogue]
    budget: Budget
    _: KW_ONLY
    prices: PriceClass | None = None
    state: int | None = None
    """Tokens that the states of a script may have; None: any number."""
    native = False
    together = _TOGETHER
    at_a_time = 1

    def check(self, memory: str) -> None:
        name = memory_policy(memory).name
        if self.state is not None and name != "constant":
            raise UserError(f"a script's state is limited under the memory constant, not under {name}")

    def attempts(self, drawn: Drawn, tasks: Sequence[Task], memory: str, stopped: Callable[[], bool]) -> list[Played]:
        del stopped  # a batch is finished
        context = memory_policy(memory)
        if self.state is not None and not remembers(drawn):  # its solver cannot forget by itself
            context = memory_policy(f"capped({self.state})" if self.state else "none")
        tags = extended(drawn.tags, *context.asks)
        rollout = Rollout(
            engine=self.engine(drawn, tasks),
            dialogue=self.dialogue(tags),
            environment=drawn.environment,
            context=context,
            budget=self.budget,
        )
        found = rollout(tasks, sampling=Sampling(temperature=0.0, seed=drawn.seed, session=new_session()))
        decode = rollout.dialogue.codec.decode
        return [self._played(drawn, task, memory, one, decode) for task, one in zip(tasks, found, strict=True)]

    def _played(self, drawn: Drawn, task: Task, memory: str, found: Trajectory, decode: Decode) -> Played:
        em = found.metrics.get("em", (0.0,) * task.objectives)
        turns = [turn for turn in found.turns if turn.action != SUMMARY]
        cached = cached_by_turn(found)
        prompts = [len(turn.context_ids) for turn in found.turns]
        written = [len(turn.completion_ids) for turn in found.turns]
        attempt = Attempt(
            **outline(drawn.cell, task, memory),
            right=per_objective(em),
            ended=str(found.ended),
            detail=found.detail,
            turns=len(turns),
            searches=sum(turn.action not in (ANSWER, MALFORMED) and bool(turn.observation) for turn in turns),
            tokens=Spent(fresh=sum(prompts) - sum(cached), cached=sum(cached), output=sum(written)),
            peak=peak_tokens(found),
            cost=None if self.prices is None else attempt_cost(found, self.prices),
            seconds=found.seconds,
        )
        return Played(attempt, lambda: told_of(task, found.answer, lambda data: data.turns_of(found, decode)))


def policy_player(path: str, *, device: str = "auto", prices: PriceClass | None = None) -> TagPlayer:
    """A policy folder, a shipped policy, or `RANDOM`. Loads torch. Raises UserError where it cannot be loaded."""
    from mem1.engines.device import Machine, choose
    from mem1.engines.workers import local_engine
    from mem1.policy.folders import policy_folder
    from mem1.policy.policy import Policy, load_policy
    from mem1.policy.protocol import Known
    from mem1.policy.tiny_model import new_model
    from mem1.recipe.model import TinyModel

    at = choose(device, Machine.here())
    if path == RANDOM:
        codec = _stand_in()
        model = new_model(TinyModel(max_positions=65_536), vocab_size=codec.vocab_size, seed=0)
        policy = Policy(model.to(at.at), codec)  # type: ignore[arg-type]  # transformers' own signature takes less
    else:
        known = Known.at(policy_folder(path))
        policy = load_policy(path, chat_template=known.general and bool(known.template), device=at, dtype="auto")
    positions = policy.model.config.max_position_embeddings
    engines: dict[str, Engine] = {}

    def engine(drawn: Drawn, tasks: Sequence[Task]) -> Engine:
        del tasks
        if drawn.tags.name not in engines:
            stops = extended(drawn.tags, SUMMARY).stop_strings
            engines[drawn.tags.name] = local_engine(policy.model, policy.codec, stops, workers=1)
        return engines[drawn.tags.name]

    return TagPlayer(
        path if path == RANDOM else Path(path).name,
        {"kind": "policy", "policy": policy.fingerprint()},
        engine,
        lambda tags: TagDialogue(policy.codec, tags, policy.chat_template),
        Budget(context=positions),
        prices=prices,
    )


def script_player(name: str, *, state: int | None, prices: PriceClass | None = None) -> TagPlayer:
    """The scripted solver; `state`: tokens that its states may have; None: any number."""
    codec = _stand_in()
    return TagPlayer(
        name,
        {"kind": "script", "state": state, "speaks": "tags"},
        lambda drawn, tasks: ScriptedEngine(
            codec, script_of(replace(drawn, tags=extended(drawn.tags, SUMMARY)), tasks, state)
        ),
        lambda tags: TagDialogue(codec, tags),
        _SCRIPTED,
        prices=prices,
        state=state,
    )


def _stand_in() -> Codec:
    return Codec.load(asset(STAND_IN))
