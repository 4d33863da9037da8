"""A server between an agent and its model that folds the agent's messages: `mem1 proxy`."""
