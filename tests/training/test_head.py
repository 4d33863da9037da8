"""Log-probs and entropies in pieces are those of all logits at once, and their memory is that of a piece."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mem1.planning.fakes import BACKWARD, FORWARD, counted
from mem1.training import head
from mem1.training.head import Entropy, columns, head_columns

STATES, WIDTH, VOCABULARY = 23, 6, 11


def with_head(layer: nn.Linear) -> Any:
    return SimpleNamespace(get_output_embeddings=lambda: layer)


def computed(
    entropy: Entropy, *, bias: bool, frozen: bool = False, dtype: torch.dtype = torch.float64, rows: int | None = None
) -> list[Tensor]:
    """Columns and gradients; `rows` per piece, None: of all logits, by autograd."""
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=torch.float64).to(dtype)
    layer.weight.requires_grad_(not frozen)
    hidden = torch.randn(STATES, WIDTH, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (STATES,))
    if rows is None:
        found = columns(layer(hidden), targets, 0.7, entropy)
    else:
        found = head_columns(with_head(layer), hidden, targets, 0.7, entropy)
    weights = torch.randn(found.shape, dtype=torch.float64).to(found.dtype)
    if entropy == "value":
        weights[:, 1] = 0.0  # autograd gives it no gradient either
    (found * weights).sum().backward()
    return [found.detach(), *(x.grad for x in (hidden, *layer.parameters()) if x.grad is not None)]


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch):
    """Makes pieces of so many rows."""

    def of(rows: int) -> int:
        monkeypatch.setattr(head, "LOGITS_KEPT", 0)
        monkeypatch.setattr(head, "LOGITS_AT_ONCE", rows * VOCABULARY)
        return rows

    return of


@pytest.mark.parametrize("rows", [1, 5, STATES])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
def test_pieces_have_the_columns_and_gradients_of_the_whole(entropy: Entropy, bias: bool, rows: int, pieces):
    whole, cut = computed(entropy, bias=bias), computed(entropy, bias=bias, rows=pieces(rows))
    assert len(whole) == len(cut) == 3 + bias
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_a_frozen_head_gets_no_gradient_and_the_states_get_theirs(pieces):
    whole, cut = (computed("gradient", bias=False, frozen=True, rows=rows) for rows in (None, pieces(4)))
    assert len(whole) == len(cut) == 2
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_a_head_in_bf16_gives_columns_in_fp32_and_gradients_in_bf16(pieces):
    exact = computed("gradient", bias=False)
    cut = computed("gradient", bias=False, dtype=torch.bfloat16, rows=pieces(8))
    assert [x.dtype for x in cut] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for a, b in zip(exact, cut, strict=True):
        assert (a - b).abs().max() < 0.05 * a.abs().max()


def test_under_autocast_products_are_in_bf16_and_the_gradient_of_an_fp32_head_in_fp32(pieces, monkeypatch):
    exact, rows = computed("gradient", bias=True), pieces(8)
    monkeypatch.setattr(head, "_HEAD_ROWS", 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cut = computed("gradient", bias=True, dtype=torch.float32, rows=rows)
    assert {x.dtype for x in cut} == {torch.float32}
    for a, b in zip(exact, cut, strict=True):
        assert 1e-4 < (a - b).abs().max() / a.abs().max() < 0.05, "bf16 has 8 bits"


def test_a_temperature_of_zero_is_an_error_in_pieces_too(pieces):
    pieces(2)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        head_columns(with_head(nn.Linear(2, 3)), torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), 0.0, "none")


@pytest.mark.parametrize("autocast", [False, True])
def test_the_loss_of_8192_tokens_and_the_vocabulary_of_7b_holds_less_than_a_gigabyte(autocast: bool):
    """Beside the head, its gradient and, under autocast, its copy in bf16."""
    width, vocabulary, tokens = 3584, 152_064, 8192
    with counted() as count:
        layer = nn.Linear(width, vocabulary, bias=False, dtype=torch.float32 if autocast else torch.bfloat16)
        states = torch.zeros(tokens, width, dtype=torch.bfloat16).requires_grad_()
        held = count.live
        count.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            found = head_columns(with_head(layer), states, torch.zeros(tokens, dtype=torch.long), 1.0, "gradient")
        found.sum().backward()
    copy = 2 * width * vocabulary * autocast
    gradient = layer.weight.element_size() * width * vocabulary
    assert 0.2e9 < count.peaks[FORWARD] - held - copy < 1e9
    assert 0.2e9 < count.peaks[BACKWARD] - held - copy - gradient < 1e9
