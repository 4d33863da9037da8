"""Attempts in MEM1's released result files as trajectories, tokenized with a given tokenizer.

    turn 1   prompt                               -> r0, then the result i0
    turn 2   mem1    prompt r0 i0                 -> r1
             normal  prompt r0 i0                 -> r1     a third turn would still have r0 and i0
             amem    recalled r0 i0               -> r1     without the prompt, which the released loop drops

The chat template around these texts is not in the files and not counted. Source: MIT-MI/MEM1 at 6f22061,
Mem1/inference/data_pipelines.py and models.py.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from mem1.contexts import Fold, Full, next_context
from mem1.contexts.base import Context
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.extras.mem1_release.reader import ReleasedAttempt, ReleasedTurn
from mem1.protocol import ANSWER, MALFORMED, RELEASED, SEARCH, parse
from mem1.records import Ended, Question, Task, Trajectory, Turn
from mem1.scoring import score_answers
from mem1.tasks.datasets.fields import Wanted
from mem1.tasks.datasets.parquet import searchr1

Inference = Literal["mem1", "normal", "amem"]
"""The released loop's inference types: `constant`, `full`, and A-MEM's notes beside the last turn."""


def inference_of(path: str) -> Inference:
    """The inference type in the file name given by generate_rollout.py. Raises UserError for another name."""
    match = re.search(r"_(mem1|normal|amem)\.jsonl(\.gz)?$", path)
    if match is None:
        raise UserError(
            f"{path}: the name does not end in _mem1.jsonl, _normal.jsonl or _amem.jsonl, so the context "
            f"policy is unknown; give --inference {', '.join(get_args(Inference))}"
        )
    return checked_inference(match[1])


def checked_inference(name: str) -> Inference:
    """The inference type with this name. Raises UserError for any other name."""
    for known in get_args(Inference):
        if name == known:
            return known
    raise UserError(f"--inference takes {', '.join(get_args(Inference))}, not {name!r}")


def trajectory(attempt: ReleasedAttempt, codec: Codec, inference: Inference) -> Trajectory:
    """The attempt in tokens of `codec`, scored; without a task if it failed and has no gold answers."""
    turns: list[Turn] = []
    prompt = codec.encode_untrusted(attempt.prompt, RELEASED)
    for number, written in enumerate(attempt.turns):
        recalled = attempt.recalled[number] if attempt.recalled else ""
        context = _context(inference, prompt, codec.encode_untrusted(recalled, RELEASED), turns)
        turns.append(_turn(context, written, codec, last=number == len(attempt.turns) - 1, ended=attempt.ended))
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


def _context(inference: Inference, prompt: tuple[int, ...], recalled: tuple[int, ...], turns: list[Turn]) -> Context:
    if inference != "amem":
        return next_context(Fold(1) if inference == "mem1" else Full(), prompt, turns)
    if not turns:
        span = (len(recalled), len(recalled) + len(prompt))
        return Context(ids=recalled + prompt, spans={"prompt": span})
    last = turns[-1]
    return Context(ids=recalled + last.completion_ids + last.observation_ids, spans={"prompt": (0, 0)})


def _turn(context: Context, written: ReleasedTurn, codec: Codec, *, last: bool, ended: Ended) -> Turn:
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
