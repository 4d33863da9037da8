"""Reinforcement-learning algorithms, one family per file: settings, advantages, loss, denominator and needs.

base         what an algorithm is: `Algorithm`, and the records that it takes and returns
group        grpo, dr_grpo, rloo, reinforce, reinforce_pp, dapo, rejection: one advantage per trajectory
ratios       gspo, cispo: other uses of the ratio to the old policy
channels     channels: a sum of parts, such as one for each question, each normalised by itself
ppo          ppo: a critic, GAE, one advantage per token
losses       clipped surrogate, policy gradient, likelihood; the penalty on the distance from a reference, and weights
             for a sampler that is not the trainer

To add one, subclass `Algorithm` (or the one that it resembles) and name it in a recipe:

    [rl.algorithm]
    name = "my_package.tilted:Tilted"
"""
