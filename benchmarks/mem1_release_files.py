"""The result files of MEM1's released code, read line by line, and their attempts as trajectories.

    {"q": "... Answer the following questions: who founded alvex?; where is it?",
     "t0": "<think>a</think>", "r0": "<think>a</think><search>alvex</search>", "i0": "<information>\\n[HINT]...",
     "t1": "<think>b</think>", "r1": "<think>b</think><answer>Mira Toll; Bergen</answer>",
     "index": 7, "hash": "...", "Golden_answer": [["Mira Toll"], ["Bergen"]], "Exact_match": 2,
     "Model_estimated_match": 1}

In turn i, `t` is the state, `r` the whole response and `i` the result. A last turn without `r` was neither a search nor
an answer, and its text was not kept. An attempt that failed has "error" instead of "q" and turns, and possibly
"Unknown" as its gold answers. The contexts depend on the inference type:

    turn 1   prompt                               -> r0, then the result i0
    turn 2   mem1    prompt r0 i0                 -> r1
             normal  prompt r0 i0                 -> r1     a third turn would still have r0 and i0
             amem    recalled r0 i0               -> r1     without the prompt, which the released loop drops

The chat template around these texts is not in the files and not counted. To train on such files, name the reader in a
recipe, from a clone of mem1: [sft] reader = "benchmarks.mem1_release_files:read_trajectories".

Source: MIT-MI/MEM1 at 6f22061, Mem1/inference: generate_rollout.py, data_pipelines.py, models.py, eval.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.jsonl import read_objects
from mem1.memory import Fold, Full, next_context
from mem1.memory.contexts import Context
from mem1.parquet import is_parquet
from mem1.protocol import ANSWER, MALFORMED, RELEASED, SEARCH, blocks, parse
from mem1.records import Ended, Question, Task, Trajectory, Turn
from mem1.scoring import score_answers
from mem1.tasks.datasets.files import Wanted, items, shown, strings
from mem1.tasks.datasets.own import searchr1

_SURROGATES = re.compile("[\ud800-\udfff]")
_NUMBERED = re.compile(r"[tri](\d{1,4})", re.ASCII)
_LARGEST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedTurn:
    """One call of the policy."""

    state: str
    """The state with its tags; empty: none."""
    response: str | None
    """The whole output, state included; None: not kept, because it was neither a search nor an answer."""
    result: str
    """The search result with its tags; empty in the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedAttempt:
    """One line of a result file."""

    where: str
    """File and line."""
    index: int
    """Row of the task in its data file."""
    prompt: str
    """Empty if the attempt failed."""
    golds: tuple[tuple[str, ...], ...] | None
    """Gold aliases of each objective; None: a failed attempt without them."""
    turns: tuple[ReleasedTurn, ...]
    ended: Ended
    detail: str
    """The error of a failed attempt."""
    answer: str
    """The answer by the rule of the released code: the first one in the last response, unless that holds a search."""
    exact_match: float
    """"Exact_match" in the file: objectives where answer and first gold alias contain one another."""
    estimated: float
    """"Model_estimated_match" in the file; the released code writes 1 for every attempt that did not fail."""
    memories: tuple[str, ...]
    """Notes recalled by A-MEM, one per call; empty for other policies. The released code never clears this list between
    attempts, so those of this attempt are the last ones."""

    @property
    def recalled(self) -> tuple[str, ...]:
        """The memories of this attempt's own calls."""
        return self.memories[-len(self.turns) :] if self.turns else ()


def read_released(path: str | os.PathLike[str]) -> list[ReleasedAttempt]:
    """The attempts of a result file, in order.

    Raises UserError, with file and line, for a line in another format or a repeated task, and for a Parquet file of
    tasks.
    """
    if is_parquet(path):
        raise UserError(
            f"{path} holds tasks, not results; evaluate a policy on them by `mem1 eval --questions "
            f"{path} tasks.composition=file`, or give the .jsonl that generate_rollout.py wrote"
        )
    attempts: dict[int, ReleasedAttempt] = {}
    for line, record in read_objects(path):
        where = f"{path}:{line}"
        try:
            attempt = _attempt(where, record)
        except ValueError as error:
            raise UserError(f"{where}: {error}; is this a result file of MEM1's generate_rollout.py?") from error
        if attempt.index in attempts:
            first = attempts[attempt.index].where
            raise UserError(f"{where}: task {attempt.index} occurs already at {first}; give the file of one run")
        attempts[attempt.index] = attempt
    if not attempts:
        raise UserError(f"{path} holds no result; give the .jsonl that generate_rollout.py wrote")
    return list(attempts.values())


def _attempt(where: str, record: Mapping[str, Any]) -> ReleasedAttempt:
    failed = "error" in record
    turns = () if failed else _turns(record)
    ended, answer = (Ended.TOOL_FAILED, "") if failed else _ending(turns)
    return ReleasedAttempt(
        where=where,
        index=_index(record),
        prompt="" if failed else _text(record, "q"),
        golds=_golds(record, failed),
        turns=turns,
        ended=ended,
        detail=_text(record, "error") if failed else "",
        answer=answer,
        exact_match=_number(record, "Exact_match"),
        estimated=_number(record, "Model_estimated_match"),
        memories=_memories(record, len(turns)),
    )


def _turns(record: Mapping[str, Any]) -> tuple[ReleasedTurn, ...]:
    numbers = {int(match[1]) for key in record if (match := _NUMBERED.fullmatch(key))}
    if not numbers:
        raise ValueError("it holds no turn: neither 'error' nor 't0'")
    turns = [_turn(record, number) for number in range(max(numbers) + 1)]
    if gap := [str(number) for number, turn in enumerate(turns[:-1]) if turn.response is None]:
        raise ValueError(f"turn {', '.join(gap)} has no response, but is not the last")
    return tuple(turns)


def _turn(record: Mapping[str, Any], number: int) -> ReleasedTurn:
    return ReleasedTurn(
        state=_text(record, f"t{number}"),
        response=_text(record, f"r{number}") if f"r{number}" in record else None,
        result=_text(record, f"i{number}") if f"i{number}" in record else "",
    )


def _ending(turns: Sequence[ReleasedTurn]) -> tuple[Ended, str]:
    """Ending and answer by the rule of the released loop, in which a search takes precedence."""
    response = turns[-1].response
    if response is None:
        return Ended.BAD_TAGS, ""
    answer = next(blocks(response, "answer"), None)
    if answer is None or any(blocks(response, "search")):
        return Ended.OUT_OF_TURNS, ""
    return Ended.ANSWERED, answer.content


def _golds(record: Mapping[str, Any], failed: bool) -> tuple[tuple[str, ...], ...] | None:
    if failed and record.get("Golden_answer") == "Unknown":
        return None
    listed = items(record, "Golden_answer")
    of_each = [listed] if listed and isinstance(listed[0], str) else listed
    golds = tuple(tuple(map(_clean, strings(aliases, "'Golden_answer'"))) for aliases in of_each)
    if not golds or not all(golds):
        raise ValueError(f"'Golden_answer' must have an answer for each objective, not {shown(listed)}")
    return golds


def _memories(record: Mapping[str, Any], calls: int) -> tuple[str, ...]:
    if calls == 0 or "memories" not in record:
        return ()
    listed = items(record, "memories")
    if len(listed) < calls or not all(isinstance(memory, str) for memory in listed):
        raise ValueError(f"'memories' must hold a string for each of the {calls} calls, not {shown(listed)}")
    return tuple(map(_clean, listed))


def _index(record: Mapping[str, Any]) -> int:
    value = record.get("index")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"'index' must be a whole number, not {shown(value)}")
    return value


def _number(record: Mapping[str, Any], field: str) -> float:
    value = record.get(field)
    # no NaN or infinity, which Python's JSON reader accepts
    if not isinstance(value, (bool, int, float)) or not abs(value) <= _LARGEST:
        raise ValueError(f"{field!r} must be a number, or true or false, not {shown(value)}")
    return float(value)


def _text(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{field!r} must be a string, not {shown(value)}")
    return _clean(value)


def _clean(text: str) -> str:
    """Replace unpaired surrogates, which JSON can hold but no tokenizer accepts."""
    return _SURROGATES.sub("\ufffd", text)


Inference = Literal["mem1", "normal", "amem"]
"""The released loop's inference types: `constant`, `full`, and A-MEM's notes beside the last turn."""


def inference_of(path: str) -> Inference:
    """The inference type in the file name given by generate_rollout.py. Raises UserError for another name."""
    match = re.search(r"_(mem1|normal|amem)\.jsonl(\.gz)?$", path)
    if match is None:
        raise UserError(
            f"{path}: the name does not end in _mem1.jsonl, _normal.jsonl or _amem.jsonl, so the context "
            f"policy is unknown; rename the file, or give --inference {', '.join(get_args(Inference))}"
        )
    return match[1]  # type: ignore[return-value]


def trajectory(attempt: ReleasedAttempt, codec: Codec, inference: Inference) -> Trajectory:
    """The attempt in tokens of `codec`, scored; without a task if it failed and has no gold answers."""
    turns: list[Turn] = []
    prompt = codec.encode_untrusted(attempt.prompt, RELEASED)
    for number, written in enumerate(attempt.turns):
        recalled = attempt.recalled[number] if attempt.recalled else ""
        context = _context(inference, prompt, codec.encode_untrusted(recalled, RELEASED), turns)
        turns.append(_tokenized(context, written, codec, last=number == len(attempt.turns) - 1, ended=attempt.ended))
    scores = score_answers(attempt.answer, attempt.golds or ())
    return Trajectory(
        turns=tuple(turns),
        task=_task(attempt),
        ended=attempt.ended,
        detail=attempt.detail,
        answer=attempt.answer,
        reward=sum(scores.em) if attempt.golds is not None else None,
        metrics={"em": tuple(scores.em), "f1": tuple(scores.f1)},
        context={"mem1": Fold(1).name, "normal": Full().name, "amem": "amem"}[inference],
    )


def read_trajectories(path: str | os.PathLike[str], codec: Codec) -> list[Trajectory]:
    """The attempts of a result file whose name ends with its inference type. Raises UserError as the parts do."""
    inference = inference_of(str(path))
    return [trajectory(attempt, codec, inference) for attempt in read_released(path)]


def _context(inference: Inference, prompt: tuple[int, ...], recalled: tuple[int, ...], turns: list[Turn]) -> Context:
    if inference != "amem":
        return next_context(Fold(1) if inference == "mem1" else Full(), prompt, turns)
    if not turns:
        span = (len(recalled), len(recalled) + len(prompt))
        return Context(ids=recalled + prompt, spans={"prompt": span})
    last = turns[-1]
    return Context(ids=recalled + last.completion_ids + last.observation_ids, spans={"prompt": (0, 0)})


def _tokenized(context: Context, written: ReleasedTurn, codec: Codec, *, last: bool, ended: Ended) -> Turn:
    text = written.state if written.response is None else written.response
    parsed = parse(text, RELEASED)
    completion = codec.encode_untrusted(text, RELEASED)
    action = SEARCH if not last or ended is Ended.OUT_OF_TURNS else ANSWER if ended is Ended.ANSWERED else MALFORMED
    unknown = "neither a search nor an answer; the file has only its state"
    return Turn(
        context_ids=context.ids,
        completion_ids=completion,
        observation_ids=codec.encode_untrusted(written.result, RELEASED),
        text=text,
        state=parsed.state,
        action=action,
        content=unknown if action == MALFORMED else parsed.content,
        observation=written.result,
        context_spans=context.spans,
        context_origins=context.origins,
        completion_spans=codec.token_spans(completion, codec.decode(completion), parsed.spans),
    )


def _task(attempt: ReleasedAttempt) -> Task | None:
    """The task with the questions at the end of a released prompt, or with numbered ones if there are none."""
    if attempt.golds is None:
        return None
    target = [list(aliases) for aliases in attempt.golds]
    record = {
        "data_source": "released",
        "prompt": [{"role": "user", "content": attempt.prompt}],
        "reward_model": {"ground_truth": {"target": target if len(target) > 1 else target[0]}},
    }
    try:
        questions = searchr1(record, Wanted(aliases={})).questions
    except ValueError:
        questions = tuple(
            Question(id=f"{attempt.index}-{number}", text=f"question {number} of the prompt", answers=aliases)
            for number, aliases in enumerate(attempt.golds, start=1)
        )
    return Task(
        id=str(attempt.index), questions=questions, prompt=attempt.prompt, turn_limit=max(1, len(attempt.turns))
    )
