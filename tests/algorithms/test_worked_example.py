"""research/worked-example.md works an example out on paper; our functions work it out, and every number must agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from builders import loss_inputs, trajectory
from torch import Tensor

from mem1.algorithms.base import Attempt
from mem1.algorithms.channels import Outcome, paid
from mem1.algorithms.losses import Loss, clipped_surrogate
from mem1.algorithms.ppo import generalised_advantages, value_loss
from mem1.algorithms.ratios import Gspo
from mem1.packing import TokenTree, pack

pytestmark = pytest.mark.numeric

DOCS = (Path(__file__).parents[2] / "research" / "worked-example.md").read_text(encoding="utf-8")
WORDS = ("where", "hmm", "note", "look", "oslo", "end")
WHERE, HMM, NOTE, LOOK, OSLO, END = range(6)
LAST_DIGIT = 1e-14


def table(title: str) -> list[dict[str, str]]:
    """Rows of the first table after a bold title, by the names of their columns."""
    lines = DOCS[DOCS.index(f"**{title}") :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def column(title: str, name: str) -> Tensor:
    return torch.tensor([float(row[name]) for row in table(title)], dtype=torch.float64)


def stated(what: str) -> float:
    """The number after these words in the text."""
    found = re.search(rf"{what} (-?[\d.]*\d)", DOCS)
    assert found is not None, f"the docs do not say {what!r}"
    return float(found[1])


def assert_exact(actual: Tensor, expected: Tensor) -> None:
    assert len(expected) > 0
    torch.testing.assert_close(actual, expected, rtol=0, atol=LAST_DIGIT)


@pytest.fixture
def tree() -> TokenTree:
    return pack([trajectory(([WHERE], [HMM, NOTE, LOOK]), ([WHERE, NOTE, OSLO], [OSLO, END]))])


def log_probabilities(tree: TokenTree, policy: str) -> Tensor:
    """Of the sampled words, from logits at the nodes before them; elsewhere the policy is undecided."""
    logits = torch.zeros(len(tree), len(WORDS), dtype=torch.float64)
    before = tree.parent[tree.target_node]
    rows = [row for row in table("Ratios.") if row["policy"] == policy]
    for node, row in zip(before.tolist(), rows, strict=True):
        logits[node] = torch.tensor([float(row[word]) for word in WORDS], dtype=torch.float64).log() + 3.0
    return logits.log_softmax(-1)[before, tree.input_ids[tree.target_node]]


def paid_rewards() -> Tensor:
    attempt = trajectory(([WHERE], [HMM, NOTE, LOOK]), ([WHERE, NOTE, OSLO], [OSLO, END]))
    return paid((Outcome(),), Attempt(trajectory=attempt, shaped_reward=1.0)).double()


def advantages() -> tuple[Tensor, Tensor]:
    return generalised_advantages(column("Advantages.", "value"), paid_rewards(), [5], gamma=1.0, lam=0.5)


def test_the_tree_is_the_one_drawn(tree: TokenTree):
    drawn = {
        line.split()[0]: line.split()[1:]
        for line in DOCS.splitlines()
        if re.match(r" {4}(node|word|parent|sampled) ", line)
    }
    assert [str(i) for i in range(len(tree))] == drawn["node"]
    assert [WORDS[i] for i in tree.input_ids] == drawn["word"]
    assert [str(i) for i in tree.parent.tolist()] == drawn["parent"]
    assert tree.target_node.tolist() == [1, 2, 3, 6, 7]
    assert [f"k={k}" for k in range(1, 6)] == drawn["sampled"]
    assert tree.counts == ((3, 2),)
    assert [WORDS[i] for i in tree.input_ids[tree.target_node]] == [row["word"] for row in table("Advantages.")]


def test_every_row_of_the_policy_is_a_distribution():
    rows = table("Ratios.")
    assert len(rows) == 10
    assert [sum(float(row[word]) for word in WORDS) for row in rows] == pytest.approx([1.0] * 10, abs=LAST_DIGIT)


def test_ratios(tree: TokenTree):
    ratio = (log_probabilities(tree, "now") - log_probabilities(tree, "before")).exp()
    assert_exact(ratio, column("PPO's loss.", "ratio"))


def test_advantages_and_returns():
    values = column("Advantages.", "value")
    rewards = paid_rewards()
    assert_exact(rewards, column("Advantages.", "reward"))
    assert_exact(rewards + torch.cat([values[1:], torch.zeros(1)]) - values, column("Advantages.", "delta"))
    advantages_M, returns_M = advantages()
    assert_exact(advantages_M, column("Advantages.", "advantage"))
    assert_exact(returns_M, column("Advantages.", "return"))
    restarted, _ = generalised_advantages(values, rewards, [3, 2], gamma=1.0, lam=0.5)
    assert_exact(restarted, column("Advantages.", "restarted"))


def test_the_loss_of_ppo_and_its_gradient(tree: TokenTree):
    new = log_probabilities(tree, "now").requires_grad_()
    old = log_probabilities(tree, "before")
    advantages_M, _ = advantages()
    result = clipped_surrogate(new, old, advantages_M, clip_low=0.2, clip_high=0.2, denominator=5.0)
    ratio = (new.detach() - old).exp()
    assert_exact(ratio * advantages_M, column("PPO's loss.", "w A"))
    assert_exact(ratio.clamp(0.8, 1.2) * advantages_M, column("PPO's loss.", "clip(w) A"))
    assert column("PPO's loss.", "smaller").sum().item() == pytest.approx(stated("Sum"), abs=LAST_DIGIT)
    assert result.loss.item() == pytest.approx(stated(r"5 tokens: \*\*loss"), abs=LAST_DIGIT) == -0.175625
    assert result.clipped == 2
    assert_exact(torch.autograd.grad(result.loss, new)[0], column("PPO's loss.", "gradient"))
    for k, term in enumerate(column("PPO's loss.", "smaller")):
        alone = clipped_surrogate(
            new[k : k + 1], old[k : k + 1], advantages_M[k : k + 1], clip_low=0.2, clip_high=0.2, denominator=1.0
        )
        assert alone.loss.item() == pytest.approx(-term.item(), abs=LAST_DIGIT)


def test_the_loss_of_the_critic():
    title = "The critic's loss."
    now, old = column(title, "value now"), column("Advantages.", "value")
    _, returns = advantages()
    held = old + (now - old).clamp(-0.2, 0.2)
    assert_exact(held, column(title, "held"))
    assert_exact((now - returns).square(), column(title, "free square"))
    assert_exact((held - returns).square(), column(title, "held square"))
    result = value_loss(now, old, returns, clip=0.2, denominator=5.0)
    assert column(title, "larger").sum().item() / 10 == pytest.approx(0.0219345703125, abs=LAST_DIGIT)
    assert result.loss.item() == pytest.approx(stated(r"halved and over 5 tokens: \*\*loss"), abs=LAST_DIGIT)
    assert result.clipped == 2


def gspo(log_ratio: Tensor, *, advantage: float, clip_low: float, clip_high: float) -> Loss:
    inputs = loss_inputs(log_ratio, torch.zeros_like(log_ratio), torch.full_like(log_ratio, advantage))
    return Gspo(clip_low=clip_low, clip_high=clip_high).loss(inputs, denominator=1.0)


def test_the_ratios_of_gspo(tree: TokenTree):
    log_ratio = log_probabilities(tree, "now") - log_probabilities(tree, "before")
    for row, part in zip(table("GSPO's ratios"), (slice(0, 5), slice(0, 3), slice(3, 5)), strict=True):
        tokens = int(row["tokens"])
        assert len(log_ratio[part]) == tokens
        assert log_ratio[part].sum().exp().item() == pytest.approx(float(row["product of w"]), abs=LAST_DIGIT)
        assert (
            f"{-gspo(log_ratio[part], advantage=1.0, clip_low=0.9, clip_high=9.0).loss.item():.6f}" == row["root of it"]
        )
        # the clip takes effect on a sequence that has moved too far the way its advantage points
        advantage = 1.0 if log_ratio[part].sum() > 0 else -1.0
        clipped = gspo(log_ratio[part], advantage=advantage, clip_low=0.15, clip_high=0.15).clipped
        assert clipped == (0 if row["unit"] == "trajectory" else tokens)
