"""Registers our advantage estimators with verl.

A module of its own, so that VERL_USE_EXTERNAL_MODULES=mem1.extras.verl.register can load the estimators without the
agent loop. `agent_loop` loads it in the trainer's process.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from verl.trainer.ppo.core_algos import register_adv_est

from mem1.extras.verl.advantages import estimators

for _name, _estimator in estimators().items():
    register_adv_est(_name)(_estimator)
