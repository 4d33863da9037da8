"""WebShop in Python alone: products, goals, rewards, pages."""
