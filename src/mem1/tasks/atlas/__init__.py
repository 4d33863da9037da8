"""Atlas, the invented world: entities, passages, independent and dependent questions, scripted experts."""

from mem1.tasks.atlas.expert import CLEAN, Expert, Laziness
from mem1.tasks.atlas.world import AtlasMaterial, Entity, World, make_world

__all__ = ["CLEAN", "AtlasMaterial", "Entity", "Expert", "Laziness", "World", "make_world"]
