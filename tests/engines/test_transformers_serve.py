"""A real server process: `transformers serve` on the CPU, with a small random model, offline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from worlds import rollout, shelf, task

from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.engines.dialects import Chat, Text
from mem1.engines.local import LocalEngine
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer
from mem1.policy.policy import Policy
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.model import TinyModel
from mem1.records import Ended
from mem1.rollout import Budget

pytest.importorskip("openai", reason="transformers serve needs the package openai")
pytestmark = pytest.mark.slow

TEXTS = ["the capital of Norway is Oslo and that of Sweden is Stockholm"] * 3
CONTEXTS = ["the capital of Norway", "Oslo is the capital of", "Sweden"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, Path]:
    """A model that knows nothing, and its folder. Its chat template is the messages one after the other."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("served")
    codec = Codec(bpe_tokenizer(TEXTS, vocab_size=300, tags=PAPER))
    shape = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
    made = Policy(new_model(shape, vocab_size=codec.vocab_size, seed=0), codec)
    with torch.no_grad():  # else it repeats one token for ever
        made.model.get_parameter("model.norm.weight").mul_(0.05)
    assert made.model.generation_config is not None
    made.model.generation_config.do_sample = True  # without it the server is greedy at every temperature
    made.model.save_pretrained(folder)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=codec.tokenizer, chat_template=template).save_pretrained(str(folder))
    return made, folder


@pytest.fixture(scope="module")
def address(policy: tuple[Policy, Path]) -> Iterator[str]:
    _, folder = policy
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--device", "cpu"],
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    said = ""
    try:
        for line in process.stdout:
            said += line
            if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
                threading.Thread(target=process.stdout.read, daemon=True).start()  # it must not block on a full pipe
                yield found[1]
                return
        raise AssertionError(f"transformers serve did not start:\n{said}")
    finally:
        process.kill()
        process.wait()


def engine(address: str, policy: tuple[Policy, Path], stops: tuple[str, ...] = PAPER.stop_strings, **options: str):
    made, folder = policy
    config = ModelServer.model_validate({"urls": (address,), "model": str(folder), "tries": 2, **options})
    return OpenAIEngine.open(config, made.codec, stops)


def greedy(asked: OpenAIEngine | LocalEngine, codec: Codec, tokens: int = 12) -> list[str]:
    ids = [codec.encode(context) for context in CONTEXTS]
    done = asked.complete(ids, max_tokens=[tokens] * len(ids), sampling=Sampling(temperature=0.0))
    assert [c.failed for c in done] == [None] * len(done)
    return [codec.decode(c.token_ids) for c in done]


def test_it_is_sent_text_and_writes_what_the_model_writes_here(address: str, policy: tuple[Policy, Path]):
    made, _ = policy
    asked = engine(address, policy)
    assert asked.dialect == Text()
    here = LocalEngine(made.model, made.codec, PAPER.stop_strings)
    assert greedy(asked, made.codec) == greedy(here, made.codec)


def test_a_stop_string_ends_the_completion_and_is_part_of_it(address: str, policy: tuple[Policy, Path]):
    made, _ = policy
    ids, sampling = [made.codec.encode("Oslo")], Sampling(seed=4)
    (free,) = engine(address, policy).complete(ids, max_tokens=[24], sampling=sampling)
    whole = made.codec.decode(free.token_ids)
    stop = next(whole[i : i + 3] for i in range(6, 20) if whole.index(whole[i : i + 3]) == i)
    (cut,) = engine(address, policy, (stop,)).complete(ids, max_tokens=[24], sampling=sampling)
    assert made.codec.decode(cut.token_ids) == whole[: whole.index(stop) + 3]
    assert (free.stopped, cut.stopped, cut.logprobs) == (False, True, ())


def test_chat_is_spoken_where_it_is_asked_for(address: str, policy: tuple[Policy, Path]):
    asked = engine(address, policy, endpoint="chat")
    assert asked.dialect == Chat()
    assert all(greedy(asked, policy[0].codec))


def test_attempts_are_carried_to_their_end(address: str, policy: tuple[Policy, Path]):
    made, _ = policy
    budget = Budget(completion_per_objective=0, completion_extra=8)
    run = rollout(engine(address, policy), shelf("a book ."), codec=made.codec, budget=budget)
    attempts = run([task("city", prompt=context) for context in CONTEXTS], sampling=Sampling(seed=1))
    assert {a.ended for a in attempts} <= {Ended.OUT_OF_TOKENS, Ended.BAD_TAGS}
    assert all(a.reward == 0 and a.turns for a in attempts)
