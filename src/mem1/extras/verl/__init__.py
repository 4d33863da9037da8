"""Training with verl on several nodes, with our contexts, environments and advantages: verl.md of the 7B recipe.

    settings, tasks, engine, advantages    run without verl
    register, agent_loop                   are loaded by verl and import it

One of our trajectories is one session in verl, with one output per turn.
"""
