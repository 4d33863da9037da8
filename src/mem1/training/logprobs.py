"""Log-probabilities of exactly the tokens that were sampled, with gradient.

    trajectory: [p q | a b], [p q a b i | c d]
    completion_logprobs(model, [trajectory])  ->  [[tensor([log p(a), log p(b)]), tensor([log p(c), log p(d)])]]

`packed=True` computes all contexts of all trajectories as one token tree (`mem1.packing`), `packed=False` runs
each turn alone. Both give the same numbers and gradients; a model that cannot be packed exactly is refused by
name. Under `torch.autocast` the model runs in its dtype; the log-softmax is in fp32 (fp64 for fp64 models).

Letters: T tokens of the tree, M sampled tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.packing.attention import IMPLEMENTATION, Backend, plan_attention, tree_attention
from mem1.packing.exactness import check_packable
from mem1.packing.tree import TokenTree, pack
from mem1.records import Trajectory, Turn

LOGITS_AT_ONCE = 1 << 24
"""Most logits that are held in fp32 at a time; beyond it they are computed in pieces, again in the backward pass."""

Entropy = Literal["none", "value", "gradient"]
"""Whether the entropy of each token's distribution is computed, and with gradient."""


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
        return [[_turn_logprobs(model, turn, temperature) for turn in t.turns] for t in trajectories]
    if not any(t.turns for t in trajectories):
        return [[] for _ in trajectories]
    tree = pack(trajectories)
    return tree.split(flat_logprobs(model, tree, temperature=temperature, backend=backend))


@overload
def flat_logprobs(model: PreTrainedModel, tree: TokenTree, *, temperature: float, backend: Backend = ...) -> Tensor: ...
@overload
def flat_logprobs(
    model: PreTrainedModel, tree: TokenTree, *, temperature: float, backend: Backend = ..., with_entropy: Literal[True]
) -> tuple[Tensor, Tensor]: ...
def flat_logprobs(
    model: PreTrainedModel,
    tree: TokenTree,
    *,
    temperature: float,
    backend: Backend = "blocks",
    with_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probability (M,) of each sampled token, in the order of `tree.target_node`, with gradient.

    With `with_entropy` also the entropy (M,) of the distribution that it was sampled from, in nats, without
    gradient. Raises UserError if the model cannot be packed exactly, ValueError if temperature is not positive.
    """
    states = tree_states(model, tree, backend=backend)
    wanted: Entropy = "value" if with_entropy else "none"
    columns_M = head_columns(model, states.states_ND, states.targets_N, temperature, wanted)[states.repeat_M]
    return (columns_M[:, 0], columns_M[:, 1].detach()) if with_entropy else columns_M[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeStates:
    """Where the sampled tokens of a tree were predicted from; attempts may share some, so N <= M."""

    states_ND: Tensor
    """Last hidden state before each distinct sampled token, with gradient."""
    targets_N: Tensor
    """Those tokens."""
    repeat_M: Tensor
    """Which of the N each sampled token is."""


def tree_states(model: PreTrainedModel, tree: TokenTree, *, backend: Backend = "blocks") -> TreeStates:
    """One forward pass over the tree, of a language model's trunk or of a trunk alone.

    Raises UserError if the model cannot be packed exactly.
    """
    check_packable(model)
    _check_checkpointing(model)
    device = model.device
    # Attempts may share sampled tokens: compute each node once, then repeat.
    nodes, repeat_M = torch.unique(tree.target_node, return_inverse=True)
    plan = plan_attention(tree, backend=backend, device=device)
    with tree_attention(model):
        hidden_TD = model.get_decoder()(
            input_ids=tree.input_ids[None].to(device),
            position_ids=tree.position_ids[None].to(device),
            use_cache=False,
            tree_plan=plan,
        ).last_hidden_state[0]
    return TreeStates(
        states_ND=hidden_TD.index_select(0, tree.parent[nodes].to(device)),
        targets_N=tree.input_ids[nodes].to(device),
        repeat_M=repeat_M.to(device),
    )


def head_columns(
    model: PreTrainedModel, hidden: Tensor, targets: Tensor, temperature: float, entropy: Entropy
) -> Tensor:
    """From final hidden states what `columns` returns, without all logits in memory at once."""
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear)

    def piece(hidden: Tensor, targets: Tensor) -> Tensor:
        return columns(head(hidden), targets, temperature, entropy)

    rows = max(1, LOGITS_AT_ONCE // head.out_features)
    if len(hidden) <= rows:
        return piece(hidden, targets)
    pairs = zip(hidden.split(rows), targets.split(rows), strict=True)
    return torch.cat([checkpoint(piece, h, t, use_reentrant=False) for h, t in pairs])


def columns(logits: Tensor, targets: Tensor, temperature: float, entropy: Entropy) -> Tensor:
    """(rows, V) logits -> (rows, 1) log-probs of the targets, or (rows, 2) with the entropies in nats.

    Raises ValueError if temperature is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0 in training, not {temperature}")
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    logprobs_V = torch.log_softmax(scaled, dim=-1)
    logprobs = logprobs_V.gather(-1, targets[:, None])
    if entropy == "none":
        return logprobs
    if entropy == "value":
        return torch.cat([logprobs, torch.special.entr(logprobs_V.detach().exp()).sum(-1, keepdim=True)], dim=-1)
    # entr has no finite gradient where a probability rounds to 0
    return torch.cat([logprobs, -(logprobs_V.exp() * logprobs_V).sum(-1, keepdim=True)], dim=-1)


def _turn_logprobs(model: PreTrainedModel, turn: Turn, temperature: float) -> Tensor:
    """One turn alone, unpadded, with the model's ordinary attention: (completion tokens,)."""
    length = len(turn.completion_ids)
    if length == 0:
        return torch.zeros(0, dtype=torch.promote_types(model.dtype, torch.float32), device=model.device)
    # The last token predicts nothing that is wanted; the `length` before each completion token do.
    ids = torch.tensor([turn.context_ids + turn.completion_ids[:-1]], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=length).logits[0, -length:]
    targets = torch.tensor(turn.completion_ids, device=model.device)
    return columns(logits, targets, temperature, "none")[:, 0]


def _check_checkpointing(model: PreTrainedModel) -> None:
    active = model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    if active and model.config._attn_implementation != IMPLEMENTATION:
        raise UserError(
            "gradient checkpointing runs the layers again in the backward pass: put forward and backward inside "
            "`with tree_attention(model):`, or set packed = false"
        )
