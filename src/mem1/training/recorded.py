"""Recorded attempts as what `[sft]` trains: which of them, and in which tokens.

    trajectories = "runs/big/evaluation/*.jsonl"        2 files with 120 attempts
    min_reward = 2                                      80 of them answered and have a reward of at least 2
    read_recorded(sft, policy's tokenizer, ...)     ->  80 trajectories, and how many were encoded anew

An attempt that this tokenizer recorded, with the same tokens around the prompt, is trained exactly as it was sampled.
Of any other attempt, what was sampled is text: from an API, by a model with another tokenizer, in a file of another
program. It is encoded anew, part by part (prompt, completions, results), and its memory puts the contexts
together again. The sampled tokens of an attempt stay as they are if only the chat template around the prompt differs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any

from mem1.dialogue import Dialogue, TagDialogue, turn_of
from mem1.endpoint.runs import MADE_BY
from mem1.errors import UserError
from mem1.evaluation.judge import VERDICTS
from mem1.memory import MemoryPolicy, memory_policy, next_context
from mem1.protocol import MALFORMED, SUMMARY, TAG_SETS, tagged
from mem1.recipe.supervised import Sft
from mem1.records import Ended, Trajectory, Turn
from mem1.registry import register
from mem1.trajectory_files import read_trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The attempts to train, and what became of the others."""

    trajectories: tuple[Trajectory, ...]
    files: int
    attempts: int
    """Attempts in the files."""
    left_out: dict[str, int]
    """Attempts that are not trained, by reason."""
    encoded_anew: int
    """Trained attempts whose text was encoded anew, as they have the tokens of another tokenizer, or none."""
    reframed: int
    """Trained attempts with their sampled tokens, but with this model's chat template around the prompt."""

    def record(self) -> dict[str, Any]:
        """As JSON, with a digest of the trained tokens."""
        digest = hashlib.blake2b(digest_size=16)
        for t in self.trajectories:
            for turn in t.turns:
                digest.update(repr((turn.context_ids, turn.completion_ids)).encode())
        counts = {name: getattr(self, name) for name in ("files", "attempts", "left_out", "encoded_anew", "reframed")}
        return {**counts, "trained": len(self.trajectories), "digest": digest.hexdigest()}

    def __str__(self) -> str:
        plural = "file" if self.files == 1 else "files"
        parts = [f"{len(self.trajectories)} of {self.attempts} attempts in {self.files} {plural} are trained"]
        parts += [f"{count} left out: {reason}" for reason, count in self.left_out.items()]
        if self.encoded_anew:
            parts.append(f"{self.encoded_anew} encoded anew from their text, not as they were sampled")
        if self.reframed:
            parts.append(f"{self.reframed} put into this model's chat template")
        return "; ".join(parts)


def recorded_files(config: Sft) -> list[Path]:
    """The files of `config.trajectories`, each once, by name, without a judge's verdicts beside them. Raises UserError
    where a pattern has none."""
    assert config.trajectories is not None
    found: set[Path] = set()
    for pattern in config.trajectories:
        files = {path for path in map(Path, glob(pattern, recursive=True)) if path.is_file() and path.name != VERDICTS}
        if not files:
            raise UserError(f"sft.trajectories: no file matches {pattern!r} in {Path.cwd()}; check the pattern")
        found |= files
    return sorted(found)


def read_recorded(config: Sft, dialogue: Dialogue) -> Recorded:
    """The attempts of `config.trajectories` that are trained, in tokens of this model.

    Raises UserError, with the file, for one that cannot be read, for an attempt in other tags or under an
    unknown memory, and where no attempt is left.
    """
    files = recorded_files(config)
    reader = None if config.reader is None else register.reader.get(config.reader)
    kept = _Kept(config, dialogue, encodes=reader is not None)
    for path in files:
        # a run that goes on may be writing its last line
        if reader is None:
            attempts = read_trajectories(path, drop_cut_line=True)
        else:
            attempts = _attempts_of(reader(path, dialogue.codec), f"sft.reader = {config.reader!r}, {path}")
        for number, attempt in enumerate(attempts, start=1):
            kept.add(attempt, f"{path}, attempt {number}")
    if not kept.trajectories:
        reasons = ", ".join(f"{count} {reason}" for reason, count in kept.left_out.items()) or "they are empty"
        where = str(files[0]) if len(files) == 1 else f"the {len(files)} files"
        raise UserError(
            f"sft.trajectories: {where} has no attempt to train: {reasons}; change sft.min_reward or the files"
        )
    return Recorded(
        trajectories=tuple(kept.trajectories),
        files=len(files),
        attempts=len(kept.trajectories) + sum(kept.left_out.values()),
        left_out=dict(kept.left_out),
        encoded_anew=kept.encoded_anew,
        reframed=kept.reframed,
    )


def _attempts_of(read: Any, where: str) -> list[Trajectory]:
    """What a reader of the user's own returned. Raises UserError where it is something else than trajectories."""
    attempts = list(read) if isinstance(read, Iterable) else [read]
    if wrong := [attempt for attempt in attempts if not isinstance(attempt, Trajectory)]:
        raise UserError(f"{where}: it returned {wrong[0]!r:.80}; a reader returns mem1.Trajectory objects")
    return attempts


@dataclass
class _Kept:
    """The attempts kept so far."""

    config: Sft
    dialogue: Dialogue
    encodes: bool
    """Whether a reader encoded all text anew."""
    trajectories: list[Trajectory] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    encoded_anew: int = 0
    reframed: int = 0

    def add(self, attempt: Trajectory, where: str) -> None:
        """Keep the attempt, or count why not."""
        sampled, framed = all(map(self._is_ours, attempt.turns)), self._is_framed(attempt)
        reason = self._unusable(attempt)
        if reason is None and attempt.context.startswith(MADE_BY):
            framed = sampled  # its contexts are no policy's, and are trained as they are, or not at all
            reason = None if sampled else "that an agent made with another tokenizer"
        elif reason is None:
            reason = self._unreadable(attempt, where)
        if reason is None and not (sampled and framed) and not isinstance(self.dialogue, TagDialogue):
            reason = "that are not in the tokens of this model, which calls tools"
        if reason is None:
            trained = attempt if sampled and framed else self._assembled(attempt, where, sampled=sampled)
            unknown = self.dialogue.codec.unknown_id
            if unknown is not None and any(unknown in turn.completion_ids for turn in trained.turns):
                reason = "with words that this tokenizer does not know"
            elif trained is not attempt and not _remembers_alike(attempt, trained):
                reason = "whose memory would keep or ask for something else in the tokens of this model"
        if reason is not None:
            self.left_out[reason] += 1
            return
        self.encoded_anew += self.encodes or not sampled
        self.reframed += sampled and not framed and not self.encodes
        self.trajectories.append(trained)

    def _unusable(self, attempt: Trajectory) -> str | None:
        """Why an attempt is no example; None: it is one."""
        if not attempt.ended.scorable:
            return "whose tool or model server failed"
        if attempt.ended is not Ended.ANSWERED:
            return "that did not end with an answer"
        least = self.config.min_reward
        if least is not None and (attempt.reward is None or attempt.reward < least):
            return f"with a reward below {least:g}"
        if attempt.task is None or not all(turn.text for turn in attempt.turns):
            return "without task or text"
        return None

    def _unreadable(self, attempt: Trajectory, where: str) -> str | None:
        """Why the text is no example of the tags; None: it is. Raises UserError for other tags."""
        for number, turn in enumerate(attempt.turns, start=1):
            if _reads_as_recorded(turn, self.dialogue):
                continue
            known = (TagDialogue(self.dialogue.codec, tags) for tags in TAG_SETS.values())
            other = next((spoken.name for spoken in known if _reads_as_recorded(turn, spoken)), None)
            if other is None:
                return "that are malformed by this parser"
            raise UserError(
                f"sft.trajectories: {where}, turn {number} is written in the tags {other!r}, but the recipe's are "
                f"{self.dialogue.name!r}; set protocol.base={other}"
            )
        return None

    def _is_ours(self, turn: Turn) -> bool:
        """Whether the sampled tokens are those of this tokenizer."""
        codec, ids = self.dialogue.codec, turn.completion_ids
        return codec.within(ids) and codec.decode(ids) == turn.text

    def _is_framed(self, attempt: Trajectory) -> bool:
        """Whether the attempt began with the prompt as this model gets it."""
        if attempt.task is None or not attempt.turns:
            return False
        prompt = self.dialogue.prompt(attempt.task)
        return attempt.turns[0].context_ids[: len(prompt)] == prompt

    def _assembled(self, attempt: Trajectory, where: str, *, sampled: bool) -> Trajectory:
        """The attempt in tokens of this model; `sampled`: its completions and results have them already."""
        try:
            policy = memory_policy(attempt.context)
        except UserError as error:
            raise UserError(f"sft.trajectories: {where} cannot be encoded for this model: {error}") from error
        assert attempt.task is not None
        dialogue, prompt = self.dialogue, self.dialogue.prompt(attempt.task)
        tags, codec = dialogue.tags, dialogue.codec
        turns: list[Turn] = []
        for old in attempt.turns:
            context = next_context(policy, prompt, turns)
            requested = old.action if old.prefilled else None
            completion = old.completion_ids if sampled else codec.encode_untrusted(old.text, tags)
            ids = context.ids + dialogue.opening(requested)
            turn = turn_of(dialogue, ids, context, requested, completion)
            result = old.observation_ids if sampled else self._result(old)
            turns.append(replace(turn, observation=old.observation, observation_ids=result))
        return replace(attempt, turns=tuple(turns))

    def _result(self, turn: Turn) -> tuple[int, ...]:
        if not turn.observation_ids:
            return ()
        tags = self.dialogue.tags
        return self.dialogue.codec.encode_untrusted(tagged(turn.observation, tags), tags)


def _remembers_alike(old: Trajectory, new: Trajectory) -> bool:
    """Whether the memory, which may count tokens, keeps the same of the turns in both encodings, and the summaries that
    it asks for are those that were written. Of attempts that are text alone, the latter is all that is known."""
    policy, counted = memory_policy(old.context), all(turn.completion_spans for turn in old.turns)
    for n, turn in enumerate(new.turns[1:], start=1):
        if (policy.select(new.turns[:n]).requested_action == SUMMARY) != (turn.prefilled and turn.action == SUMMARY):
            return False
        if counted and _sight(policy, old.turns[:n]) != _sight(policy, new.turns[:n]):
            return False
    return True


def _sight(policy: MemoryPolicy, turns: Sequence[Turn]) -> list[tuple[int, tuple[int, ...] | None, bool]]:
    """Of each turn that is kept: its place, the notes that are all that stays of it, whether its result stays."""
    places = {id(turn): place for place, turn in enumerate(turns)}
    return [(places.get(id(k.turn), -1), k.only_notes, k.result) for k in policy.select(turns).kept]


def _reads_as_recorded(turn: Turn, dialogue: Dialogue) -> bool:
    """Whether the text has this action and this state in a way of writing."""
    if turn.action == MALFORMED or (
        turn.prefilled and dialogue.forces_answers and turn.action not in dialogue.tags.action_tags
    ):
        return False
    read = dialogue.read(turn.text, turn.action if turn.prefilled else None)
    return (read.kind, read.state) == (turn.action, turn.state)
