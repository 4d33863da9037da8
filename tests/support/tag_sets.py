"""Sets of tags as memories and tasks extend them."""

from __future__ import annotations

from dataclasses import replace

from mem1.protocol import ACT, NOTE, OPEN, PAPER, RECALL, RELEASED, SUMMARY, TAG_SETS, extended

PAPER_WEB, RELEASED_WEB = extended(PAPER, OPEN), extended(RELEASED, OPEN)
PAPER_SUMMARY, RELEASED_SUMMARY = extended(PAPER, SUMMARY), extended(RELEASED, SUMMARY)
PAPER_RECALL, RELEASED_RECALL = extended(PAPER, RECALL), extended(RELEASED, RECALL)
PAPER_NOTES, RELEASED_NOTES = extended(PAPER, NOTE), extended(RELEASED, NOTE)
PAPER_NOTES_RECALL, RELEASED_NOTES_RECALL = extended(PAPER, NOTE, RECALL), extended(RELEASED, NOTE, RECALL)
PAPER_SHOP, RELEASED_SHOP = extended(PAPER, ACT), extended(RELEASED, ACT)
PAPER_SHOP_NOTES = extended(PAPER, ACT, NOTE)
PAPER_BELIEF = replace(PAPER_SUMMARY, name="paper-belief", thought="think")
EVERY = {
    tags.name: tags
    for tags in (
        *(*TAG_SETS.values(), PAPER_WEB, RELEASED_WEB, PAPER_SUMMARY, RELEASED_SUMMARY, PAPER_SHOP, RELEASED_SHOP),
        *(PAPER_RECALL, RELEASED_RECALL, PAPER_NOTES, RELEASED_NOTES, PAPER_SHOP_NOTES, PAPER_BELIEF),
        *(PAPER_NOTES_RECALL, RELEASED_NOTES_RECALL),
    )
}
"""Name -> tags, of all that recipes have used."""
