"""Does a tokenizer know the words of the tasks? One with a token for unknown words ([UNK]) may know none of them.

    check_words(codec, tasks, PAPER, whose="shipped")
    ->  UserError: 62% of the tokens of the questions are unknown to the tokenizer of shipped ...

A policy that reads [UNK] in the place of every word answers nothing, and no right answer can be written in its tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.protocol import Tags
from mem1.records import Task

log = logging.getLogger(__name__)
SAMPLE = 8
"""Tasks that say enough."""
REFUSED = 0.2
"""Share of unknown tokens from which tasks are refused."""
NAMED = 0.01
"""Share from which a warning says so."""


def check_words(codec: Codec, tasks: Sequence[Task], tags: Tags, *, whose: str) -> None:
    """Measure the share of unknown tokens in a sample of prompts and of questions; the larger counts.

    Raises UserError where it is REFUSED or more; a warning names it from NAMED on. `whose` the tokenizer is, for both.
    """
    if codec.unknown_id is None:
        return
    sample = tasks[:SAMPLE]
    questions = [question.text for task in sample for question in task.questions]
    share = max(_unknown(codec, questions, tags), _unknown(codec, [task.prompt for task in sample], tags))
    said = f"{share:.0%} of the tokens of the questions are unknown to the tokenizer of {whose}"
    if share >= REFUSED:
        raise UserError(
            f"{said}, so it cannot read them; give a model with a tokenizer for any text (--model FOLDER, in a recipe "
            'model.path), train one with a tokenizer of its own (model.new.tokenizer = "bpe"), or let a --script write '
            "with another one (--tokenizer stand-in)"
        )
    if share >= NAMED:
        log.warning("%s, which reads [UNK] in their place", said)


def _unknown(codec: Codec, texts: Sequence[str], tags: Tags) -> float:
    ids = [token for of_text in codec.encode_each_untrusted(texts, tags) for token in of_text]
    return ids.count(codec.unknown_id) / len(ids) if ids and codec.unknown_id is not None else 0.0
