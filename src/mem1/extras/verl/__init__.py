"""verl's trainer on N nodes, with our contexts, environments and advantages (docs/verl.md).

    tasks, settings, checks, engine, outputs, rows, advantages    need no verl
    register, agent_loop, manager                                 are what verl loads

One trajectory of ours is one session of verl's with one output a turn.
"""
