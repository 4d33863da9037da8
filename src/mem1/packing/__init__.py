"""Trajectories as one token tree: every context of every turn in one exact forward pass."""

from __future__ import annotations

from mem1.packing.packs import Pack, Piece, split_into_packs
from mem1.packing.tree import TokenTree, pack, visible

__all__ = ["Pack", "Piece", "TokenTree", "pack", "split_into_packs", "visible"]
