"""A memory writer: a small model that reads an agent's work once, and notes what may be needed later."""
