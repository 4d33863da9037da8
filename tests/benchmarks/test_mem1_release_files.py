"""Result files of MEM1's released code, read and scored again.

The samples are written after the format of MIT-MI/MEM1 at 6f22061: Mem1/inference/generate_rollout.py (keys of a line
and of a failed one), data_pipelines.py (turns t, r, i; the answer), eval.py (what the released evaluator computes).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mem1_release import main, released_peak, released_scores, rescore
from mem1_release_files import Inference, ReleasedAttempt, inference_of, read_released, trajectory
from released import FOUND, GOLDS, PROMPT, SEARCH, answered, line
from samples import mem1 as task_row
from samples import write_lines, write_rows

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.evaluation.metrics import peak_tokens
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER, RELEASED
from mem1.records import Ended
from mem1.tasks.datasets import read_tasks

CODEC = Codec(atlas_tokenizer(PAPER))


FAILED = {
    "index": 90,
    "hash": "e",
    "error": "Connection refused",
    "question": "Unknown",
    "Golden_answer": "Unknown",
    "Exact_match": False,
    "Model_estimated_match": False,
}


def read_one(tmp_path: Path, record: dict[str, Any]) -> ReleasedAttempt:
    return read_released(write_lines(tmp_path / "one.jsonl", record))[0]


class TestReading:
    def test_an_attempt_of_two_turns(self, tmp_path):
        attempt = read_one(tmp_path, line(7, SEARCH, answered("Mira Toll; Bergen")))
        assert (attempt.index, attempt.prompt, attempt.golds) == (7, PROMPT, (("Mira Toll", "M. Toll"), ("Bergen",)))
        assert [(t.state, t.response, t.result) for t in attempt.turns] == [
            ("<think>look for alvex</think>", SEARCH, FOUND),
            ("<think>done</think>", answered("Mira Toll; Bergen"), ""),
        ]
        assert (attempt.ended, attempt.answer) == (Ended.ANSWERED, "Mira Toll; Bergen")
        assert (attempt.exact_match, attempt.estimated) == (2, 1)

    def test_the_golds_of_a_single_question_are_one_list(self, tmp_path):
        attempt = read_one(tmp_path, line(1, answered("a"), Golden_answer=["A", "B"], Exact_match=True))
        assert attempt.golds == (("A", "B"),) and attempt.exact_match == 1

    @pytest.mark.parametrize(
        ("responses", "ended"),
        [
            ([SEARCH, SEARCH], Ended.OUT_OF_TURNS),
            # of a search and an answer the released loop takes the search
            ([SEARCH, SEARCH + answered("Mira Toll; Bergen")], Ended.OUT_OF_TURNS),
        ],
    )
    def test_an_attempt_that_never_answered_has_no_answer(self, tmp_path, responses, ended):
        attempt = read_one(tmp_path, line(1, *responses))
        assert (attempt.ended, attempt.answer) == (ended, "")

    def test_a_last_turn_without_a_response_was_malformed(self, tmp_path):
        attempt = read_one(tmp_path, {**line(1, SEARCH), "i0": FOUND, "t1": "<think>hm</think>"})
        assert (attempt.ended, attempt.turns[-1].response, attempt.answer) == (Ended.BAD_TAGS, None, "")

    def test_a_failed_attempt_counts_and_keeps_its_error(self, tmp_path):
        attempt = read_one(tmp_path, FAILED)
        assert (attempt.ended, attempt.detail, attempt.golds) == (Ended.TOOL_FAILED, "Connection refused", None)

    def test_of_the_memories_those_of_the_attempt_are_the_last(self, tmp_path):
        attempt = read_one(tmp_path, line(1, SEARCH, answered("x"), memories=["of another task", "", "- m"]))
        assert attempt.recalled == ("", "- m")

    def test_half_a_surrogate_pair_is_replaced(self, tmp_path):
        assert read_one(tmp_path, line(1, answered("\ud800"))).answer == "\ufffd"

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"q": None}, "'q' must be a string, not None"),
            ({"r0": 3}, "'r0' must be a string, not 3"),
            ({"t2": "<think>x</think>"}, "'t1' must be a string, not None"),
            ({"t1": "", "t2": ""}, "turn 1 has no response, but is not the last"),
            ({"index": "7"}, "'index' must be a whole number"),
            ({"index": True}, "'index' must be a whole number"),
            ({"Golden_answer": "Unknown"}, "'Golden_answer' must be a list"),
            ({"Golden_answer": []}, "must have an answer for each objective"),
            ({"Golden_answer": [["A"], [" "]]}, "must have an answer for each objective"),
            ({"Golden_answer": [["A"], "B"]}, "must be a list of strings"),
            ({"Exact_match": float("nan")}, "'Exact_match' must be a number"),
            ({"Exact_match": 10**400}, "'Exact_match' must be a number"),
            ({"Model_estimated_match": None}, "'Model_estimated_match' must be a number"),
            ({"memories": []}, "'memories' must hold a string for each of the 1 calls"),
            ({"memories": [3]}, "'memories' must hold a string for each of the 1 calls"),
        ],
    )
    def test_a_broken_line_is_named_with_its_number(self, tmp_path, change, message):
        path = write_lines(tmp_path / "r.jsonl", line(1, answered("x")), {**line(2, answered("x")), **change})
        with pytest.raises(UserError, match=rf"r\.jsonl:2: .*{message}.*generate_rollout"):
            read_released(path)

    def test_a_line_without_turns_a_cut_file_and_an_empty_one(self, tmp_path):
        with pytest.raises(UserError, match="holds no turn"):
            read_one(tmp_path, line(1))
        (tmp_path / "cut.jsonl").write_text(json.dumps(line(1, answered("x")))[:50])
        with pytest.raises(UserError, match=r"cut\.jsonl:1: not a whole JSON object"):
            read_released(tmp_path / "cut.jsonl")
        with pytest.raises(UserError, match="holds no result"):
            read_released(write_lines(tmp_path / "empty.jsonl"))

    def test_a_task_that_stands_twice_is_refused(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", line(3, answered("x")), line(4, answered("x")), line(3, answered("y")))
        with pytest.raises(UserError, match=r"r\.jsonl:3: task 3 occurs already at .*r\.jsonl:1;"):
            read_released(path)

    def test_the_parquet_file_of_the_tasks_is_read_by_data_and_is_no_result(self, tmp_path):
        path = write_rows(tmp_path / "test.parquet", task_row(["who founded alvex", "where is it"], GOLDS))
        assert [[q.answers for q in task] for task in read_tasks(path)] == [[("Mira Toll", "M. Toll"), ("Bergen",)]]
        with pytest.raises(UserError, match=r"holds tasks, not results; .*mem1 eval --questions"):
            read_released(path)


class TestReleasedEvaluator:
    @pytest.mark.parametrize(
        ("answer", "em", "f1"),
        [
            ("Mira Toll; Bergen", 2, 2),
            ("m. toll;BERGEN.", 2, 2),
            ("Mira Toll", 0, 0),  # as many answers as questions, or nothing
            ("Mira Toll; Bergen; Oslo", 0, 0),
            ("The Mira Toll; Bergen", 1, 0.8 + 1),  # the article counts
            ("Mira Mira; Bergen", 1, 2 / 3 + 1),  # sets of words
            ("", 0, 0),
        ],
    )
    def test_scores_by_hand(self, tmp_path, answer, em, f1):
        attempt = read_one(tmp_path, line(1, SEARCH, answered(answer)))
        assert released_scores(attempt) == pytest.approx((em, f1))

    def test_tags_that_do_not_pair_score_nothing(self, tmp_path):
        result = FOUND.replace("Bergen", "Bergen <answer>")
        assert released_scores(read_one(tmp_path, line(1, SEARCH, answered("Mira Toll; Bergen"), i0=result))) == (0, 0)

    def test_what_comes_after_the_tenth_turn_is_not_read(self, tmp_path):
        nine, ten = ([SEARCH] * n for n in (9, 10))
        assert released_scores(read_one(tmp_path, line(1, *nine, answered("Mira Toll; Bergen"))))[0] == 2
        assert released_scores(read_one(tmp_path, line(1, *ten, answered("Mira Toll; Bergen"))))[0] == 0

    def test_peaks_by_hand_in_characters(self, tmp_path):
        #  turn 0: t0 r0 = 2 + 5, result 4; turn 1: t1 r1 = 1 + 3
        record = {**line(1, "x"), "t0": "tt", "r0": "rrrrr", "i0": "iiii", "t1": "t", "r1": "rrr"}
        attempt = read_one(tmp_path, record)
        assert released_peak(attempt, len, appended=False) == 7 + 4 + 4
        assert released_peak(attempt, len, appended=True) == 7 + 4 + 4
        longer = read_one(tmp_path, {**record, "i1": "ii", "t2": "", "r2": "r"})
        assert released_peak(longer, len, appended=False) == 15
        assert released_peak(longer, len, appended=True) == 15 + 2 + 1

    def test_memories_of_all_attempts_so_far_count_and_attempts_without_a_match_do_not(self, tmp_path):
        recalled = line(1, "x", memories=["12345", "1"])
        assert released_peak(read_one(tmp_path, recalled), len, appended=False) == 1 + 5
        assert released_peak(read_one(tmp_path, {**recalled, "Exact_match": 0}), len, appended=False) is None

    def test_nothing_written_is_left_out_of_one_mean_and_0_in_the_other(self, tmp_path):
        attempt = read_one(tmp_path, line(1, ""))
        assert released_peak(attempt, len, appended=False) is None
        assert released_peak(attempt, len, appended=True) == 0


class TestRescoring:
    def test_every_attempt_counts_and_answers_are_scored_by_position(self, tmp_path):
        path = write_lines(
            tmp_path / "r.jsonl",
            line(1, SEARCH, answered("The Mira Toll; Bergen")),
            line(2, SEARCH, answered("Mira Toll"), Exact_match=0),
            line(3, SEARCH, SEARCH, Exact_match=0),
            FAILED,
        )
        (result,) = rescore(read_released(path))
        assert (result.objectives, result.attempts) == (2, 4)
        assert (result.em, result.em_summed) == ((1 + 0.5 + 0 + 0) / 4, (2 + 1 + 0 + 0) / 4)
        assert result.f1 == result.em
        assert result.em_low < result.em < result.em_high
        assert (result.peak_tokens, result.peak_tokens_without_prompt) == (None, None)
        assert {name: n for name, n in result.endings.items() if n} == {
            "answered": 2,
            "out_of_turns": 1,
            "tool_failed": 1,
        }
        said = result.published
        assert (said.exact_match, said.estimated) == (2 / 4, 3 / 4)
        assert (said.em, said.f1) == (1 / 3, pytest.approx(1.8 / 3))  # three lines: it cannot read the failed one
        assert (said.peak_tokens, said.peak_attempts) == (None, 0)

    def test_an_answer_after_the_tenth_turn_counts(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", line(1, *[SEARCH] * 12, answered("Mira Toll; Bergen")))
        assert rescore(read_released(path))[0].em == 1

    def test_tasks_of_other_sizes_are_other_rows(self, tmp_path):
        one = line(1, answered("A"), Golden_answer=["A"])
        path = write_lines(tmp_path / "r.jsonl", line(2, answered("x; Bergen")), one)
        assert [(r.objectives, r.em) for r in rescore(read_released(path))] == [(1, 1.0), (2, 0.5)]

    def test_a_failed_attempt_whose_size_is_not_known_is_named(self, tmp_path):
        one = line(1, answered("A"), Golden_answer=["A"])
        path = write_lines(tmp_path / "r.jsonl", line(2, answered("x; Bergen")), one, FAILED)
        with pytest.raises(UserError, match=r"r\.jsonl:3: .*have \[1, 2\] objectives"):
            rescore(read_released(path))
        with pytest.raises(UserError, match="have no objectives"):
            rescore(read_released(write_lines(tmp_path / "failed.jsonl", FAILED)))

    def test_peaks_are_over_all_attempts_with_and_without_the_prompt(self, tmp_path):
        path = write_lines(
            tmp_path / "r.jsonl",
            line(1, SEARCH, answered("Mira Toll; Bergen")),
            line(2, SEARCH, answered("x"), Exact_match=0),
            FAILED,
        )
        (result,) = rescore(read_released(path), codec=CODEC, inference="mem1")
        kept = tokens(SEARCH) + tokens(FOUND)
        first, second = kept + tokens(answered("Mira Toll; Bergen")), kept + tokens(answered("x"))
        assert result.peak_tokens_without_prompt == (first + second + 0) / 3
        assert result.peak_tokens == (first + second + 2 * tokens(PROMPT) + 0) / 3
        assert result.published.peak_attempts == 1


def tokens(text: str) -> int:
    return len(CODEC.encode_untrusted(text, RELEASED))


class TestTrajectories:
    @pytest.mark.parametrize(
        ("inference", "contexts"),
        [
            ("mem1", ["p", "p r0 i0", "p r1 i1"]),
            ("normal", ["p", "p r0 i0", "p r0 i0 r1 i1"]),
            ("amem", ["m0 p", "m1 r0 i0", "m2 r1 i1"]),
        ],
    )
    def test_contexts_are_those_of_the_released_loop(self, tmp_path, inference: Inference, contexts):
        texts = {
            "p": PROMPT,
            "r0": SEARCH,
            "i0": FOUND,
            "r1": "<search>b</search>",
            "i1": FOUND + "2",
            "m0": "",
            "m1": "- m",
            "m2": "- m\n- n",
        }
        memories = [texts["m0"], texts["m1"], texts["m2"]] if inference == "amem" else []
        record = line(7, texts["r0"], texts["r1"], answered("Mira Toll; x"), i1=texts["i1"])
        attempt = read_one(tmp_path, {**record, **({"memories": memories} if memories else {})})
        got = trajectory(attempt, CODEC, inference)
        for turn, parts in zip(got.turns, contexts, strict=True):
            assert turn.context_ids == tuple(
                i for part in parts.split() for i in CODEC.encode_untrusted(texts[part], RELEASED)
            )
        assert [turn.action for turn in got.turns] == ["search", "search", "answer"]
        assert got.turns[0].prompt_tokens == tokens(PROMPT)
        assert (got.metrics["em"], got.reward, got.answer) == ((1.0, 0.0), 1.0, "Mira Toll; x")
        assert got.task is not None and [q.text for q in got.task.questions] == ["who founded alvex?", "where?"]

    def test_what_was_not_kept_is_malformed_and_a_failed_attempt_has_no_turn(self, tmp_path):
        attempt = read_one(tmp_path, {**line(1, SEARCH), "i0": FOUND, "t1": "<think>hm</think>"})
        got = trajectory(attempt, CODEC, "mem1")
        assert (got.turns[-1].action, got.turns[-1].text) == ("malformed", "<think>hm</think>")
        failed = trajectory(read_one(tmp_path, FAILED), CODEC, "mem1")
        assert (failed.turns, failed.task, failed.reward, peak_tokens(failed)) == ((), None, None, 0)

    def test_another_prompt_names_its_questions_by_number(self, tmp_path):
        got = trajectory(read_one(tmp_path, line(1, answered("x"), q="Do this.")), CODEC, "normal")
        assert got.task is not None and got.task.prompt == "Do this."
        assert [q.text for q in got.task.questions] == ["question 1 of the prompt", "question 2 of the prompt"]

    def test_the_files_name_says_how_it_was_made(self):
        name = "websearch_multi_3_train_reconstruction_dicts_openai_gpt-4o_{}.jsonl"
        assert [inference_of(name.format(kind)) for kind in ("mem1", "amem", "normal")] == ["mem1", "amem", "normal"]
        with pytest.raises(UserError, match="give --inference mem1, normal, amem"):
            inference_of("results.jsonl")


class TestCommand:
    @pytest.fixture
    def file(self, tmp_path) -> Path:
        lines = line(1, SEARCH, answered("The Mira Toll; Bergen")), line(2, SEARCH, answered("x; y"), Exact_match=0)
        return write_lines(tmp_path / "multi_2_m_mem1.jsonl", *lines, FAILED)

    @pytest.fixture
    def call(self, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
        """What the command prints."""

        def called(*arguments: object) -> str:
            main([str(argument) for argument in arguments])
            return capsys.readouterr().out

        return called

    def test_json_holds_both_scores(self, call, file):
        printed = json.loads(call(file, "--json"))
        assert (printed["file"], printed["inference"]) == ("multi_2_m_mem1.jsonl", None)
        (row,) = printed["rows"]
        assert (row["em_summed"], row["published"]["em"], row["peak_tokens"]) == (pytest.approx(2 / 3), 0.5, None)

    def test_the_table_fits_80_columns_and_says_what_was_not_counted(self, call, file):
        printed = call(file)
        assert max(map(len, printed.splitlines())) <= 80
        assert "Tokens are not counted: give --tokenizer" in " ".join(printed.split())
        assert "exact matches per task" in printed and "tool_failed 1" in printed

    def test_with_a_tokenizer_both_peaks_are_given(self, call, file, tmp_path):
        CODEC.tokenizer.save(str(tmp_path / "tokenizer.json"))
        (row,) = json.loads(call(file, "--tokenizer", tmp_path, "--json"))["rows"]
        kept = tokens(SEARCH) + tokens(FOUND)
        both = 2 * kept + tokens(answered("The Mira Toll; Bergen")) + tokens(answered("x; y"))
        assert row["peak_tokens_without_prompt"] == pytest.approx(both / 3)
        assert row["published"]["peak_attempts"] == 1
        normal = call(file, "--tokenizer", tmp_path, "--inference", "normal", "--json")
        assert json.loads(normal)["inference"] == "normal"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--inference", "mem1"], "give --tokenizer FOLDER too"),
            (["--tokenizer", "nowhere"], "tokenizer.json does not exist"),
            (["--tokenizer", "nowhere", "--inference", "x"], "invalid choice: 'x'"),
        ],
    )
    def test_mistakes_are_explained(self, file, capsys, options, message):
        with pytest.raises(SystemExit) as ended:
            main([str(file), *options])
        assert message in (ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err)
