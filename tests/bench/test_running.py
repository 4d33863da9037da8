"""A run of the benchmark in its folder: what is repeated, what is refused, and who can take it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bench_suites import SMALL, atlas, suite
from servers import wait_for

from mem1.bench.policies import policy_player, script_player
from mem1.bench.results import Attempt, load_result
from mem1.bench.running import Played, outline, run
from mem1.bench.suites import MOST_SEED, SUITES, Drawing, Drawn, suite_of
from mem1.errors import UserError
from mem1.interrupts import Interrupted
from mem1.net.spending import LimitReached
from mem1.records import Task


@dataclass
class Player:
    """Ends attempts as it is told, by task."""

    ends: Callable[[str], str] = lambda task: "answered"
    name: str = "player"
    about: dict[str, Any] = field(default_factory=lambda: {"kind": "player"})
    asked: list[tuple[str, str]] = field(default_factory=list)
    native: bool = True
    together: int = 1
    at_a_time: int = 1
    stopped: Callable[[], bool] = lambda: False

    def check(self, memory: str) -> None:
        pass

    def attempts(self, drawn: Drawn, tasks: Sequence[Task], memory: str, stopped: Any) -> list[Played]:
        self.stopped = stopped
        self.asked += [(memory, task.id) for task in tasks]
        ended = [self.ends(task.id) for task in tasks]
        return [
            Played(Attempt(**outline(drawn.cell, task, memory), right=(1.0,) * task.objectives, ended=end), dict)
            for task, end in zip(tasks, ended, strict=True)
        ]


def play(player: Player, folder: Path, memories: Sequence[str] = ("a",), seed: int = 0, **more: Any) -> Any:
    return run(lambda journal: player, SMALL, memories, seed=seed, folder=folder, **more)


class TestSuites:
    def test_tasks_follow_from_the_suite_and_the_seed_alone(self):
        drawn = [Drawing(SMALL, seed=seed).of(cell).tasks for seed in (0, 0, 1) for cell in SMALL.cells]
        one, two, fresh = (drawn[i : i + len(SMALL.cells)] for i in range(0, len(drawn), len(SMALL.cells)))
        assert one == two
        prompts, others = ({task.prompt for tasks in of for task in tasks} for of in (one, fresh))
        assert not prompts & others
        assert [task.id for task in one[1]] == [f"independent-1-n2-seed0-{i}" for i in range(3)]

    def test_a_native_model_has_another_prompt_for_the_same_questions(self):
        tags, native = (Drawing(SMALL, seed=0, native=native).of(SMALL.cells[0]).tasks[0] for native in (False, True))
        assert (tags.id, tags.questions) == (native.id, native.questions) and tags.prompt != native.prompt

    def test_each_shipped_suite_is_larger_than_the_one_before(self):
        sizes = [sum(cell.tasks for cell in SUITES[name].cells) for name in ("quick", "standard", "full")]
        assert sizes == sorted(sizes) and max(cell.objectives for cell in SUITES["full"].cells) == 256
        for known in SUITES.values():
            ids = [id for cell in known.cells for id in cell.ids(MOST_SEED)]
            assert len(ids) == len(set(ids))

    def test_families_and_suites_that_are_not_there_are_named(self):
        with pytest.raises(UserError, match="no family 'chains'; it has: independent, chain"):
            SMALL.only(["chains"])
        with pytest.raises(UserError, match="unknown suite 'fast'; known: quick, standard, full"):
            suite_of("fast")
        with pytest.raises(UserError, match=r"bench_suites:atlas is a function, not a mem1\.bench\.suites\.Suite"):
            suite_of("bench_suites:atlas")
        assert suite_of("bench_suites:SMALL") == SMALL and SMALL.config is atlas


class TestResuming:
    def test_a_finished_run_is_read_and_nothing_is_attempted(self, tmp_path: Path):
        first = play(Player(), tmp_path)
        second = play(never := Player(), tmp_path)
        assert len(first.attempts) == 8 and never.asked == []
        assert second == first == load_result(tmp_path / "result.json")

    def test_what_the_server_failed_at_is_repeated_and_counts_nothing_meanwhile(self, tmp_path: Path):
        failing = Player(lambda task: "engine_failed" if task.startswith("chain") else "out_of_turns")
        assert [one.ended for one in play(failing, tmp_path).attempts].count("engine_failed") == 3
        again = Player()
        found = play(again, tmp_path)
        assert [task for _, task in again.asked] == [f"chain-1-n2-seed0-{i}" for i in range(3)]
        assert [one.ended for one in found.attempts] == ["out_of_turns"] * 5 + ["answered"] * 3

    def test_memories_and_families_are_added(self, tmp_path: Path):
        play(Player(), tmp_path, ("a",), families=("chain",))
        play(Player(), tmp_path, ("b",), families=("chain",))
        last = Player()
        found = play(last, tmp_path, ("a",))
        assert [one.task for one in found.of("a")] == [id for cell in SMALL.cells for id in cell.ids(0)]
        assert [one.family for one in found.of("b")] == ["chain"] * 3
        assert len(last.asked) == 5

    def test_of_families_that_a_command_leaves_out_as_many_tasks_stay_as_every_size_has(self, tmp_path: Path):
        known = suite({1: 3, 2: 3, 4: 1})

        def played(player: Player, families: Sequence[str] = (), limit: int | None = None) -> list[str]:
            limited = replace(known, limit=limit)
            found = run(lambda journal: player, limited, ["a"], seed=0, folder=tmp_path, families=families)
            return [one.task.partition("-1-")[2] for one in found.attempts if one.family == "independent"]

        def killed(task: str) -> str:
            if task == "independent-1-n2-seed0-1":
                raise UserError("killed")
            return "answered"

        firsts = ["n1-seed0-0", "n2-seed0-0", "n4-seed0-0"]
        assert played(Player(), limit=1) == firsts
        assert played(Player(), ["chain"]) == firsts
        with pytest.raises(UserError, match="killed"):
            played(Player(killed))
        assert played(Player(), ["chain"]) == firsts, "of one question there are three by now"
        assert len(played(Player())) == len(played(Player(), ["chain"])) == 7

    def test_fewer_tasks_of_each_cell_are_the_first_ones_and_the_rest_follows(self, tmp_path: Path):
        few, rest = Player(), Player()
        found = run(lambda journal: few, replace(SMALL, limit=2), ["a"], seed=0, folder=tmp_path)
        firsts = [id for cell in SMALL.cells for id in cell.ids(0)[:2]]
        assert [one.task for one in found.attempts] == [id for _, id in few.asked] == firsts
        whole = play(rest, tmp_path)
        assert [one.task for one in whole.attempts] == [id for cell in SMALL.cells for id in cell.ids(0)]
        assert not {id for _, id in rest.asked} & set(firsts)

    def test_batches_are_the_same_whenever_they_are_repeated(self, tmp_path: Path):
        play(Player(together=2), tmp_path)
        lines = (tmp_path / "attempts.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "attempts.jsonl").write_bytes(b"".join(lines[:3]))  # killed within the second batch
        again = Player(together=2)
        play(again, tmp_path)
        assert [task for _, task in again.asked][:3] == [f"independent-1-n2-seed0-{i}" for i in (0, 1, 2)]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": 1}, r"was made with other settings:\n  seed: 0 in the folder, 1 now\n.* choose another --out"),
            ({"player": Player(name="other")}, 'model: "player" in the folder, "other" now'),
            (
                {"player": Player(about={"kind": "player", "temperature": 1})},
                "about.temperature: not set in the folder, 1 now",
            ),
        ],
    )
    def test_the_folder_of_another_run_is_refused(self, tmp_path: Path, change: dict[str, Any], message: str):
        play(Player(), tmp_path)
        with pytest.raises(UserError, match=message):
            play(**{"player": Player(), "folder": tmp_path, **change})
        assert play(Player(about={"kind": "player", "urls": ["x"]}), tmp_path).about == {"kind": "player"}, (
            "that of the first process"
        )

    def test_a_damaged_folder_is_explained(self, tmp_path: Path):
        play(Player(), tmp_path)
        (tmp_path / "run.json").write_text("[]")
        with pytest.raises(UserError, match=r"run\.json cannot be read .*; give another --out"):
            play(Player(), tmp_path)
        (tmp_path / "run.json").unlink()
        with pytest.raises(UserError, match="so it cannot be resumed"):
            play(Player(), tmp_path)


class TestEnds:
    def test_a_limit_ends_the_run_and_tells_what_is_saved(self, tmp_path: Path):
        def ends(task: str) -> str:
            if task == "independent-1-n2-seed0-1":
                raise LimitReached("the limit of 5 USD is reached")
            return "answered"

        with pytest.raises(
            UserError, match=r"5 USD is reached; continue with a higher --max-cost\n3 of 8 attempts are done"
        ):
            play(Player(ends), tmp_path)
        assert not (tmp_path / "result.json").exists()
        assert len(play(last := Player(), tmp_path).attempts) == 8 and len(last.asked) == 5

    def test_a_server_that_is_down_does_not_cost_every_attempt_its_patience(self, tmp_path: Path):
        down = Player(lambda task: "engine_failed")
        with pytest.raises(UserError, match=r"(?s)8 attempts in a row failed: .*8 of 16 attempts are done"):
            play(down, tmp_path, ("a", "b"))
        assert len(down.asked) == 8
        play(last := Player(), tmp_path, ("a", "b"))
        assert len(last.asked) == 16

    def test_ctrl_c_ends_the_run_after_what_is_under_way_and_tells_what_is_saved(self, tmp_path: Path):
        def ends(task: str) -> str:
            if task == "independent-1-n2-seed0-1":
                os.kill(os.getpid(), signal.SIGINT)
                wait_for(player.stopped)  # the main thread takes the signal when it is scheduled
            return "answered"

        player = Player(ends)
        with pytest.raises(
            Interrupted, match=r"4 of 8 attempts are done and saved in .*; repeat the command to continue"
        ):
            play(player, tmp_path)
        assert len(play(last := Player(), tmp_path).attempts) == 8 and len(last.asked) == 4

    def test_progress_begins_with_what_there_is(self, tmp_path: Path):
        told = list[tuple[int, int]]()
        play(Player(), tmp_path, families=("chain",))
        play(Player(), tmp_path, on_progress=lambda attempts, of: told.append((len(attempts), of)))
        assert told == [(3, 8)] + [(1, 8)] * 5

    def test_time_is_that_of_all_processes(self, tmp_path: Path):
        play(Player(lambda task: time.sleep(0.01) or "answered"), tmp_path, families=("chain",))
        first = load_result(tmp_path / "result.json").seconds
        play(Player(lambda task: time.sleep(0.01) or "answered"), tmp_path)
        assert 0.03 <= first < load_result(tmp_path / "result.json").seconds


class TestInTags:
    def test_the_script_answers_with_a_state_and_not_without(self, tmp_path: Path):
        for state, expected in ((None, 1.0), (1000, 1.0), (0, 0.0)):
            made = script_player("script", state=state)
            found = run(lambda _, made=made: made, SMALL, ["constant"], seed=0, folder=tmp_path / str(state))
            assert {one.accuracy for one in found.attempts} == {expected}
        with pytest.raises(UserError, match="limited under the memory constant, not under full"):
            script_player("script", state=50).check("full")

    @pytest.mark.parametrize("memory", ["full", "masked", "fold(2)", "window(2)", "summary(300)", "none"])
    def test_every_memory_can_be_had(self, memory: str, tmp_path: Path):
        made = script_player("script", state=None)
        found = run(lambda _: made, SMALL, [memory], seed=0, folder=tmp_path, families=("chain",))
        assert {one.accuracy for one in found.attempts} == {0.0 if memory in ("none",) else 1.0}
        first = found.attempts[0]
        assert first.tokens.fresh > 0 and first.tokens.output > 0 and first.peak > 0 and first.searches >= 3

    def test_a_policy_takes_it_whatever_it_knows(self, tmp_path: Path):
        tiny = replace(SMALL, cells=SMALL.cells[:1])
        for path in ("random", "shipped"):
            made = policy_player(path, device="cpu")
            found = run(lambda _, made=made: made, tiny, ["constant", "full"], seed=0, folder=tmp_path / path)
            assert len(found.attempts) == 4 and found.model == path
            record = json.loads((tmp_path / path / "run.json").read_text())
            assert record["about"]["kind"] == "policy" and len(record["about"]["policy"]) == 32
            if path == "random":
                assert {one.accuracy for one in found.attempts} == {0.0}
                assert {one.ended for one in found.attempts} <= {"bad_tags", "out_of_tokens"}
