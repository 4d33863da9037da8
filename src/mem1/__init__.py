"""mem1: train, evaluate and run LLM agents whose memory stays constant however long the task is.

Rooms, in the order of the imports: records, protocol, scoring, contexts, tasks, retrieval, envs, engines,
rollout, packing, algorithms, training, evaluation, planning, extras, cli. Importing `mem1` loads none of them.
"""

__version__ = "0.1.0"
