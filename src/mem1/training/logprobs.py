"""Log-probabilities of exactly the tokens that were sampled, with gradient.

    trajectory: [p q | a b], [p q a b i | c d]
    completion_logprobs(model, [trajectory])  ->  [[tensor([log p(a), log p(b)]), tensor([log p(c), log p(d)])]]
    score(model, pack, temperature=1.0)       ->  log-probs (M,), entropies (M,), states (M, D) of a pack's tokens

Packed, all contexts of all trajectories are computed as one token tree (`mem1.packing`); unpacked, each turn alone.
Both give the same numbers and gradients, in the order of trajectories, turns, tokens. The state of a sampled token is
the last hidden state *before* it, at the tree's `parent`: its logit is computed from it, and a critic reads the value
from it too. Under `torch.autocast` the model runs in its dtype; `mem1.training.head` has what follows.

Letters: T tokens of the tree, M sampled tokens, N distinct ones, D hidden size, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.packing import Pack, TokenTree, pack
from mem1.packing.attention import IMPLEMENTATION, Backend, check_packable, plan_attention, tree_attention
from mem1.records import Trajectory, Turn
from mem1.training.head import Entropy, columns, head_columns
from mem1.training.ranks.processes import as_forward


def completion_logprobs(
    model: PreTrainedModel,
    trajectories: Sequence[Trajectory],
    *,
    temperature: float = 1.0,
    packed: bool = True,
    backend: Backend = "blocks",
) -> list[list[Tensor]]:
    """Per trajectory, per turn, a 1-D tensor over `completion_ids`, with gradient; `backend` is for packed ones.

    Raises UserError if `packed` and the model cannot be packed exactly, ValueError if temperature is not positive.
    """
    if not packed:
        return [[_score_turn(model, turn, temperature, "none")[0][:, 0] for turn in t.turns] for t in trajectories]
    if not any(t.turns for t in trajectories):
        return [[] for _ in trajectories]
    check_packable(model)
    tree = pack(trajectories)
    return tree.split(flat_logprobs(model, tree, temperature=temperature, backend=backend))


def flat_logprobs(
    model: PreTrainedModel, tree: TokenTree, *, temperature: float, backend: Backend = "blocks"
) -> Tensor:
    """Log-prob (M,) of each sampled token, in the order of `tree.target_node`, with gradient.

    Exact only for a model that passes `check_packable`. Raises ValueError if temperature is not positive.
    """
    found = tree_states(model, tree, backend=backend)
    return head_columns(model, found.states_ND, found.targets_N, temperature, "none")[found.repeat_M, 0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """A policy's outputs for M sampled tokens."""

    logprobs_M: Tensor
    """With gradient."""
    entropy_M: Tensor
    """Entropy in nats of the distribution that each was sampled from; with gradient only if requested."""
    states_MD: Tensor
    """Last hidden state before each, with gradient."""


def score(
    model: PreTrainedModel,
    batch: Pack,
    *,
    temperature: float,
    packed: bool = True,
    entropy: Literal["value", "gradient"] = "value",
    attention: Backend = "blocks",
) -> Scores:
    """One forward pass of a policy: scores of all sampled tokens of a pack.

    packed      as a token tree, with `attention`; exact only for a model that passes `check_packable`. False: one
                context per row, with the model's own attention
    """
    if packed:

        def on_tree() -> tuple[Tensor, Tensor]:
            found = tree_states(model, batch.tree, backend=attention)
            both_N = head_columns(model, found.states_ND, found.targets_N, temperature, entropy)
            return both_N[found.repeat_M], found.states_MD

        both_M, states_MD = as_forward(model, on_tree)
    else:
        turns = [_score_turn(model, turn, temperature, entropy) for t in batch.trajectories for turn in t.turns]
        both_M, states_MD = (torch.cat(parts) for parts in zip(*turns, strict=True))
    entropy_M = both_M[:, 1] if entropy == "gradient" else both_M[:, 1].detach()
    return Scores(logprobs_M=both_M[:, 0], entropy_M=entropy_M, states_MD=states_MD)


def trunk_states(trunk: PreTrainedModel, batch: Pack, *, packed: bool = True, attention: Backend = "blocks") -> Tensor:
    """`Scores.states_MD` of a model without a head."""
    if packed:
        return as_forward(trunk, lambda: tree_states(trunk, batch.tree, backend=attention).states_MD)
    rows = [(turn, _ids(turn, trunk)) for t in batch.trajectories for turn in t.turns]
    return torch.cat(
        [
            trunk(input_ids=ids, use_cache=False).last_hidden_state[0, ids.shape[1] - len(turn.completion_ids) :]
            for turn, ids in rows
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeStates:
    """Hidden states from which the sampled tokens of a tree are predicted; attempts may share some, so N <= M."""

    states_ND: Tensor
    """Last hidden state before each distinct sampled token, with gradient."""
    targets_N: Tensor
    """Those tokens."""
    repeat_M: Tensor
    """Index among the N of each sampled token."""

    @property
    def states_MD(self) -> Tensor:
        return self.states_ND[self.repeat_M]


def tree_states(model: PreTrainedModel, tree: TokenTree, *, backend: Backend = "blocks") -> TreeStates:
    """One forward pass over the tree, of a language model's trunk or of a trunk alone."""
    recomputes = model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    if recomputes and model.config._attn_implementation != IMPLEMENTATION:
        raise UserError(
            "gradient checkpointing runs the layers again in the backward pass: put forward and backward inside "
            "`with tree_attention(model):`, or set packed = false"
        )
    device = model.device
    # Attempts may share sampled tokens: compute each node once, then repeat.
    nodes, repeat_M = torch.unique(tree.target_node, return_inverse=True)
    plan = plan_attention(tree, backend=backend, device=device)
    with tree_attention(model):
        hidden_TD = model.get_decoder()(
            input_ids=tree.input_ids[None].to(device, non_blocking=True),
            position_ids=tree.position_ids[None].to(device, non_blocking=True),
            use_cache=False,
            tree_plan=plan,
        ).last_hidden_state[0]
    return TreeStates(
        states_ND=hidden_TD.index_select(0, tree.parent[nodes].to(device, non_blocking=True)),
        targets_N=tree.input_ids[nodes].to(device, non_blocking=True),
        repeat_M=repeat_M.to(device, non_blocking=True),
    )


def _score_turn(model: PreTrainedModel, turn: Turn, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor]:
    """What `columns` returns and (tokens, D) states: one turn alone, with the model's ordinary attention."""
    length = len(turn.completion_ids)
    with _head_input(model) as states:
        # the model's own way to its logits: whatever it does to them after the head is kept
        out = model(input_ids=_ids(turn, model), use_cache=False, logits_to_keep=max(length, 1))
    targets = torch.tensor(turn.completion_ids, dtype=torch.long, device=model.device)
    rows = slice(out.logits.shape[1] - length, None)
    return columns(out.logits[0, rows], targets, temperature, entropy), states[0][0, rows]


@contextmanager
def _head_input(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """The states that this thread gives to the head inside the block.

    transformers' `output_hidden_states` would leave hooks in the model for good, with which it cannot be pickled.
    """
    found: list[Tensor] = []
    here = threading.get_ident()

    def keep(_head: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == here:  # another thread may compute another pack
            found.append(arguments[0])

    head = model.get_output_embeddings()
    assert head is not None  # a causal language model has one
    hook = head.register_forward_pre_hook(keep)
    try:
        yield found
    finally:
        hook.remove()


def _ids(turn: Turn, model: PreTrainedModel) -> Tensor:
    """(1, context and completion without its last token, which predicts nothing)."""
    ids = turn.context_ids + turn.completion_ids
    return torch.tensor([ids[:-1] if turn.completion_ids else ids], device=model.device)
