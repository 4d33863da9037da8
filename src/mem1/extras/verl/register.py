"""Our estimators by their names in verl.

Our manager loads this in the trainer's process; VERL_USE_EXTERNAL_MODULES=mem1.extras.verl.register does in all.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from verl.trainer.ppo.core_algos import register_adv_est

from mem1.extras.verl.advantages import estimators

for _name, _estimator in estimators().items():
    register_adv_est(_name)(_estimator)
