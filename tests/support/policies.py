"""Small policies, and servers of them in threads of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from precision import rounding
from servers import app_in_a_thread
from transformers import PreTrainedModel
from worlds import CODEC

from mem1.engines.chat_messages import ChatMessages
from mem1.engines.policy_sampler import Sampler
from mem1.engines.policy_server import make_app
from mem1.policy.tiny_model import new_model
from mem1.protocol import PAPER
from mem1.recipe.model import TinyModel
from mem1.records import Trajectory, Turn
from mem1.training.logprobs import completion_logprobs

CHAT = ChatMessages.in_tags(CODEC, PAPER)
SHAPE = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48, max_positions=512)


def tiny(seed: int = 0) -> PreTrainedModel:
    """A model that knows nothing; its distribution is flat enough that it says many things."""
    model = new_model(SHAPE, vocab_size=CODEC.vocab_size, seed=seed)
    with torch.no_grad():
        model.get_parameter("model.norm.weight").mul_(0.3)
    return model.eval()


@contextmanager
def policy_server(folder: Path, model: PreTrainedModel | None = None) -> Iterator[tuple[str, Sampler]]:
    """Address and inside of a server that takes weights from `folder`; it begins with others than any test has."""
    sampler = Sampler(tiny(99) if model is None else model, CODEC)
    with app_in_a_thread(make_app(sampler, chat=CHAT, weights_folder=folder)) as address:
        yield address, sampler


def assert_sampled_by(
    model: PreTrainedModel,
    context: Sequence[int],
    sampled: Sequence[int],
    logprobs: Sequence[float],
    *,
    temperature: float = 1.0,
) -> None:
    """The log-probabilities are the trainer's of these weights, up to rounding."""
    turn = Turn(context_ids=tuple(context), completion_ids=tuple(sampled))
    ((ours,),) = completion_logprobs(model, [Trajectory(turns=(turn,))], temperature=temperature)
    atol = rounding(model, tokens=turn.num_tokens, magnitude=float(ours.detach().abs().max()))
    torch.testing.assert_close(torch.tensor(list(logprobs)), ours.detach(), rtol=0, atol=atol)
