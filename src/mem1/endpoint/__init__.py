"""Trains a third-party agent: it calls an endpoint of ours, which samples and records.

    run("task", "http://127.0.0.1:40123/kV3.../v1")       the agent, in whatever framework
      POST .../chat/completions                           each call becomes a turn, with its exact tokens
      POST .../act                                        the environment of the task, if the agent wants it
    -> "Q1 Oslo"                                          the answer, or a reward

`AgentRollout` is called like `mem1.rollout.Rollout`, so training, evaluation and checks do not know the difference.
"""
