"""WebShop in pure Python: products, goals, rewards, pages."""

from mem1.envs.webshop.catalogue import Catalogue, Goal, Instruction, Product
from mem1.envs.webshop.reward import Score, score

__all__ = ["Catalogue", "Goal", "Instruction", "Product", "Score", "score"]
