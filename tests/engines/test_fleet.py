"""Many attempts on many servers, some of which die: `benchmarks/fleet.py` in a small form."""

from __future__ import annotations

import fleet

from mem1.engines.base import Sampling, derived_seed
from mem1.records import Ended


def test_no_attempt_is_lost_when_servers_die_and_their_requests_go_to_others():
    given = fleet.options().parse_args(["--servers", "4", "--attempts", "40", "--latency", "0.1", "--deaths", "2"])
    found, seconds, _, cpu = fleet.attempt(given, slow=0)
    assert [t.ended for t in found] == [Ended.ANSWERED] * 40
    assert {len(t.turns) for t in found} == {given.turns}
    # each reply that came was waited for, and none twice
    asked = [derived_seed(Sampling().seed, t.task.id, 0, turn) for t in found if t.task for turn in range(given.turns)]
    assert abs(seconds["slept"] - sum(fleet.latency(seed, given.latency) for seed in asked)) < 1e-6
    assert cpu > 0


def test_the_longest_attempt_says_how_long_the_fleet_takes_at_least():
    given = fleet.options().parse_args(["--servers", "2", "--attempts", "3", "--latency", "0.02", "--turns", "2"])
    found, _, wall, _ = fleet.attempt(given, slow=0)
    each = [sum(fleet.latency(derived_seed(0, f"t{i}", 0, turn), given.latency) for turn in range(2)) for i in range(3)]
    assert fleet.demanded(found, given.latency) == max(each) < wall
