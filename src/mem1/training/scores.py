"""One forward pass of a policy, or of a trunk alone, over the contexts of some trajectories.

    score(model, [trajectory], temperature=1.0, packed=True)  ->  log-probs (M,), entropies (M,), states (M, D)

The state of a sampled token is the last hidden state *before* it, at the tree's `parent`: its logit is computed
from it, and a critic reads the value of the state before the token from it too. Packed or one context a row: the
same numbers, in the order of trajectories, turns, tokens.

Letters: M sampled tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mem1.packing import TokenTree, pack
from mem1.packing.attention import Backend
from mem1.records import Trajectory, Turn
from mem1.training.logprobs import Entropy, columns, head_columns, tree_states
from mem1.training.ranks.sharding import as_forward


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What a policy says of M sampled tokens."""

    logprobs_M: Tensor
    """With gradient."""
    entropy_M: Tensor
    """In nats, of the distribution that each was sampled from; with gradient only where that was asked for."""
    states_MD: Tensor
    """Last hidden state before each, with gradient."""


def score(
    model: PreTrainedModel,
    trajectories: Sequence[Trajectory],
    *,
    temperature: float,
    packed: bool,
    entropy: Entropy = "value",
    attention: Backend = "blocks",
) -> Scores:
    """Scores of all sampled tokens; `attention` is for `packed`.

    Raises UserError if `packed` and the model cannot be packed exactly.
    """
    if packed:
        both_M, states_MD = as_forward(
            model, lambda: _score_tree(model, pack(trajectories), temperature, entropy, attention)
        )
    else:
        turns = [_score_turn(model, turn, temperature, entropy) for t in trajectories for turn in t.turns]
        both_M, states_MD = (torch.cat(parts) for parts in zip(*turns, strict=True))
    entropy_M = both_M[:, 1] if entropy == "gradient" else both_M[:, 1].detach()
    return Scores(logprobs_M=both_M[:, 0], entropy_M=entropy_M, states_MD=states_MD)


def trunk_states(
    trunk: PreTrainedModel, trajectories: Sequence[Trajectory], *, packed: bool, attention: Backend = "blocks"
) -> Tensor:
    """`Scores.states_MD` of a model without a head. Raises UserError as `score`."""
    if packed:
        return as_forward(trunk, lambda: _trunk_tree(trunk, pack(trajectories), attention))
    rows = [(turn, _ids(turn, trunk)) for t in trajectories for turn in t.turns]
    return torch.cat(
        [
            trunk(input_ids=ids, use_cache=False).last_hidden_state[0, ids.shape[1] - len(turn.completion_ids) :]
            for turn, ids in rows
        ]
    )


def _score_tree(
    model: PreTrainedModel, tree: TokenTree, temperature: float, entropy: Entropy, attention: Backend
) -> tuple[Tensor, Tensor]:
    """(M, 2) log-probs and entropies, (M, D) states."""
    found = tree_states(model, tree, backend=attention)
    both_N = head_columns(model, found.states_ND, found.targets_N, temperature, entropy)
    return both_N[found.repeat_M], found.states_ND[found.repeat_M]


def _trunk_tree(trunk: PreTrainedModel, tree: TokenTree, attention: Backend) -> Tensor:
    found = tree_states(trunk, tree, backend=attention)
    return found.states_ND[found.repeat_M]


def _score_turn(model: PreTrainedModel, turn: Turn, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor]:
    """(tokens, 2) log-probs and entropies, (tokens, D) states: one turn alone, with the model's ordinary attention."""
    length = len(turn.completion_ids)
    ids = _ids(turn, model)
    # The model's own way to its logits: what it does to them after the head is not lost.
    out = model(input_ids=ids, use_cache=False, logits_to_keep=max(length, 1), output_hidden_states=True)
    kept = slice(ids.shape[1] - length, None)
    targets = torch.tensor(turn.completion_ids, dtype=torch.long, device=model.device)
    logits = out.logits[0, out.logits.shape[1] - length :]
    return columns(logits, targets, temperature, entropy), out.hidden_states[-1][0, kept]


def _ids(turn: Turn, model: PreTrainedModel) -> Tensor:
    """(1, context and completion without its last token, which predicts nothing)."""
    ids = turn.context_ids + turn.completion_ids
    return torch.tensor([ids[:-1] if turn.completion_ids else ids], device=model.device)
