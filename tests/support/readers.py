"""Tasks of reading in a small codec, and demonstrations of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.extras.writer.reading import ReadingTasks
from mem1.memory import memory_policy
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import NOTE, PAPER, extended
from mem1.records import Task, Trajectory
from mem1.rollout import Budget, Rollout

TAGS = replace(extended(PAPER, NOTE), layout="<{result}> {text} </{result}>")
READ = ReadingTasks(transcripts=2, exchanges=40)
CODEC = Codec(bpe_tokenizer(["Note what may be needed later."] * 3, vocab_size=300, tags=TAGS))
LETTERS = Codec(Tokenizer(models.BPE()))
"""One in which tags are letters, as for language models: " <" is one token."""
LETTERS.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
LETTERS.tokenizer.decoder = decoders.ByteLevel()
LETTERS.tokenizer.train_from_iterator(
    ["</note> <note> due: </note> <query> next </query>"] * 9,
    trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
)


def drawn(config: ReadingTasks = READ, objectives: int = 3, count: int = 4) -> list[Task]:
    """Tasks of training."""
    return config.source("train", TAGS).tasks(objectives=objectives, count=count, seed=1)


def demonstrated(tasks: Sequence[Task], codec: Codec = CODEC) -> list[Trajectory]:
    """What the expert makes of them."""
    environment = READ.source("train", TAGS).environment
    rollout = Rollout(
        engine=ScriptedEngine(codec, READ.expert(tasks, environment, TAGS, seed=0)),
        dialogue=TagDialogue(codec, TAGS),
        environment=environment,
        budget=Budget(completion_extra=4_000, context=100_000, force_answer=False),
        context=memory_policy("notebook(4)"),
    )
    return rollout(tasks, sampling=Sampling())
