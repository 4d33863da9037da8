"""Atlas, the invented world: entities, relations, passages, one- and two-hop questions, scripted experts."""

from mem1.tasks.atlas.experts import CLEAN, Expert, Laziness
from mem1.tasks.atlas.world import Entity, World, make_world

__all__ = ["CLEAN", "Entity", "Expert", "Laziness", "World", "make_world"]
