"""The curriculum of [rl]: phases one after another."""

from __future__ import annotations

import pytest

from mem1.recipe.rl import Phase, Rl


def test_a_step_has_the_numbers_of_objectives_of_its_phase():
    rl = Rl(curriculum=(Phase(steps=2, objectives=(1,)), Phase(steps=1, objectives=(2, 4)), Phase(steps=1)))
    assert [rl.objectives(step) for step in range(4)] == [(1,), (1,), (2, 4), (2,)]
    with pytest.raises(IndexError):
        rl.objectives(4)
