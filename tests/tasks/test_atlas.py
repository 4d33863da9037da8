"""Atlas: a world of its own for each seed and half, questions that need their hops, and experts with habits."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from worlds import CODEC, SAMPLING, contexts, rollout

from mem1.envs.atlas import AtlasTasks
from mem1.envs.search import SearchEnvironment
from mem1.errors import UserError
from mem1.protocol import PAPER
from mem1.records import Ended, Question, Task, Trajectory
from mem1.retrieval import BM25
from mem1.retrieval.corpus import read_passages
from mem1.tasks.atlas import Expert, Laziness, World, make_world
from mem1.tasks.atlas.world import FIRST_WORDS, KINDS, LAST_WORDS, RELATIONS, names
from mem1.tasks.compose import compose
from mem1.tasks.datasets import read_questions
from mem1.tasks.prompts import TaskTemplate

WORLD = make_world(1, entities=200)
SHELF = SearchEnvironment({WORLD.name: BM25.build(WORLD.passages())}, top_k=2, style="bare")


def questions(world: World, count: int, *, hops: tuple[int, ...] = (1, 2), seed: int = 0) -> list[Question]:
    return list(itertools.islice(world.questions(seed=seed, hops=hops), count))


def attempts(expert: Expert, objectives: int, *, hops: tuple[int, ...] = (1, 2), count: int = 20) -> list[Trajectory]:
    """The expert through the real loop, over BM25 on the world's passages."""
    tasks = compose(
        questions(WORLD, 400, hops=hops),
        TaskTemplate(prompt="plain", tags=PAPER, corpus=WORLD.name),
        objectives=objectives,
        count=count,
        seed=0,
    )
    return rollout(expert, SHELF)(tasks, sampling=SAMPLING)


def exact(trajectories: list[Trajectory]) -> float:
    return sum(sum(t.per_objective("em")) / len(t.per_objective("em")) for t in trajectories) / len(trajectories)


def lazy(**habits: float) -> Expert:
    return Expert(tags=PAPER, laziness=Laziness(**habits))


def test_development_worlds_have_names_of_the_training_half_in_worlds_that_training_never_draws():
    def asked(half: Literal["train", "evaluation"], evaluated: str) -> list[tuple[str, str]]:
        """World and subject of each question."""
        config = AtlasTasks.model_validate({"worlds": 2, "entities": 40, "evaluated": evaluated})
        tasks = config.source(half, PAPER).tasks(objectives=1, count=40, seed=0)
        return [(task.corpus, task.questions[0].text.split(" 's ")[0]) for task in tasks]

    train, development, test = asked("train", "test"), asked("evaluation", "development"), asked("evaluation", "test")
    assert asked("train", "development") == train
    worlds = [{world for world, _ in half} for half in (train, development, test)]
    assert [len(some) for some in worlds] == [2, 2, 2] and len(set.union(*worlds)) == 6
    assert {subject for _, subject in [*train, *development]} <= set(names("train"))
    assert {subject for _, subject in test} <= set(names("evaluation"))


def test_a_world_and_its_questions_are_a_function_of_the_seed():
    again = make_world(1, entities=200)
    assert (again.passages(), questions(again, 50)) == (WORLD.passages(), questions(WORLD, 50))
    assert make_world(2, entities=200).passages() != WORLD.passages()
    assert questions(WORLD, 50, seed=1) != questions(WORLD, 50)


def test_the_facts_of_a_world_stand_in_its_passages_one_passage_an_entity():
    passages = WORLD.passages()
    assert len(passages) == len({p.title for p in passages}) == 200
    entity = WORLD.entities[0]
    assert (passages[0].title, entity.kind) == (entity.name, "person")
    birthplace, employer = (WORLD.facts[entity.name, r] for r in ("birthplace", "employer"))
    assert passages[0].text == (
        f"{entity.name} is a person . {entity.name} 's birthplace is {birthplace} . "
        f"{entity.name} 's employer is {employer} ."
    )


def test_facts_lead_to_an_entity_of_the_right_kind_and_never_back_to_the_same_one():
    assert len(WORLD.facts) == sum(len(RELATIONS[e.kind]) for e in WORLD.entities)
    for (subject, relation), found in WORLD.facts.items():
        assert WORLD.kind_of[found] == RELATIONS[WORLD.kind_of[subject]][relation]
        assert found != subject
    assert {e.kind for e in WORLD.entities} == set(KINDS)


def test_no_name_occurs_in_both_halves():
    train, evaluation = set(names("train")), set(names("evaluation"))
    assert not train & evaluation
    assert len(train) + len(evaluation) == len(FIRST_WORDS) * len(LAST_WORDS) == 25_600
    assert 0.2 < len(evaluation) / 25_600 < 0.3
    held_out = make_world(1, split="evaluation", entities=200)
    shown = " ".join(p.text for p in WORLD.passages()) + " ".join(q.text for q in questions(WORLD, 200))
    assert not [e.name for e in held_out.entities if e.name in shown]


def test_every_word_of_a_world_is_one_token():
    unknown = CODEC.encode("[UNK]")[0]
    texts = [p.text for p in WORLD.passages()] + [f"Q1 {q.text} {q.answers[0]}" for q in questions(WORLD, 200)]
    for text in texts:
        assert unknown not in CODEC.encode(text)
        assert len(CODEC.encode(text)) == len(text.split())


def test_a_question_has_one_answer_which_its_last_passage_states():
    text_of = {p.id: p.text for p in WORLD.passages()}
    for question in questions(WORLD, 300):
        (answer,) = question.answers
        assert len(question.passage_ids) == question.hops
        assert f" is {answer} ." in text_of[question.passage_ids[-1]]
        assert question.text.count(" 's ") == question.hops and question.text.endswith(" ?")


def test_the_second_passage_of_a_two_hop_question_is_named_only_by_the_first():
    text_of = {p.id: p for p in WORLD.passages()}
    asked = questions(WORLD, 200, hops=(2,))
    for question in asked:
        first, second = (text_of[i] for i in question.passage_ids)
        assert first.title in question.text and second.title not in question.text
        assert f" is {second.title} ." in first.text
        assert question.answers[0] not in (first.title, second.title)
    assert len({q.id for q in asked}) > 100


def test_one_and_two_hops_come_in_equal_shares():
    hops = [q.hops for q in questions(WORLD, 1000)]
    assert 400 < hops.count(1) < 600
    assert hops.count(1) + hops.count(2) == 1000
    assert {q.hops for q in questions(WORLD, 100, hops=(1,))} == {1}


def test_questions_come_by_the_thousand_a_second():
    start = time.process_time()  # whatever else the machine does
    assert len(questions(WORLD, 5000)) == 5000
    assert time.process_time() - start < 2.5


@pytest.mark.parametrize("entities", [19, 10_000])
def test_a_world_needs_enough_entities_and_enough_names(entities: int):
    with pytest.raises(UserError, match=rf"has 20 to \d+ entities, not {entities}"):
        make_world(0, split="evaluation", entities=entities)


def test_a_world_is_saved_and_loaded_in_the_format_of_ones_own_data(tmp_path: Path):
    WORLD.save(tmp_path / "world", questions=200)
    assert read_passages(tmp_path / "world" / "passages.jsonl") == WORLD.passages()
    loaded = read_questions(tmp_path / "world" / "questions.jsonl")
    assert len({q.id for q in loaded}) == 200
    assert loaded == list(dict.fromkeys(questions(WORLD, 500)))[:200]


def test_a_world_is_not_saved_with_more_questions_than_it_has(tmp_path: Path):
    with pytest.raises(UserError, match=r"has only about .* different questions, not 500"):
        make_world(1, entities=20).save(tmp_path / "world", questions=500)
    assert not (tmp_path / "world").exists()


@pytest.mark.parametrize("objectives", [1, 2, 4])
def test_the_clean_expert_answers_everything(objectives: int):
    trajectories = attempts(Expert(tags=PAPER), objectives)
    assert len(trajectories) == 20
    assert {t.ended for t in trajectories} == {Ended.ANSWERED}
    assert exact(trajectories) == 1.0
    searches = {q.hops for t in trajectories for q in _task(t).questions}
    assert searches == {1, 2}
    for trajectory in trajectories:
        assert len(trajectory.turns) == sum(q.hops or 0 for q in _task(trajectory).questions) + 1


def test_the_clean_expert_notes_what_a_search_showed_the_answers_and_what_is_left_of_the_question():
    (trajectory,) = attempts(Expert(tags=PAPER), 2, hops=(2,), count=1)
    one, two = _task(trajectory).questions
    title = {p.id: p.title for p in WORLD.passages()}
    bridges = [title[q.passage_ids[1]] for q in (one, two)]
    (start_1, first_1, second_1), (start_2, first_2, second_2) = (
        q.text.removesuffix(" ?").split(" 's ") for q in (one, two)
    )
    answers = [q.answers[0] for q in (one, two)]
    assert [turn.state for turn in trajectory.turns] == [
        f"now Q1 {one.text} Q1 then Q2",
        f"{start_1} 's {first_1} is {bridges[0]} . now Q1 {bridges[0]} 's {second_1} ? Q1 then Q2",
        f"{bridges[0]} 's {second_1} is {answers[0]} . Q1 {answers[0]} now Q2 {two.text} Q2 last",
        f"{start_2} 's {first_2} is {bridges[1]} . Q1 {answers[0]} now Q2 {bridges[1]} 's {second_2} ? Q2 last",
        f"{bridges[1]} 's {second_2} is {answers[1]} . done",
    ]
    assert trajectory.answer == f"Q1 {answers[0]} ; Q2 {answers[1]}"


def test_the_clean_expert_works_with_appended_context_too():
    tasks = [_task(t) for t in attempts(Expert(tags=PAPER), 2, count=5)]
    full = rollout(Expert(tags=PAPER), SHELF, context="full")(tasks, sampling=SAMPLING)
    assert exact(full) == 1.0
    assert all(c.startswith(b) for t in full for b, c in zip(contexts(t), contexts(t)[1:], strict=False))


@pytest.mark.parametrize(("turns", "known"), [(2, 0), (3, 1), (4, 1), (5, 2)])
def test_the_clean_expert_gives_the_answers_it_has_when_it_must(turns: int, known: int):
    # two searches a question: at the last turn, a chain that is half way gives no answer
    short = [replace(_task(t), turn_limit=turns) for t in attempts(Expert(tags=PAPER), 3, hops=(2,), count=5)]
    for trajectory in rollout(Expert(tags=PAPER), SHELF)(short, sampling=SAMPLING):
        assert trajectory.ended is Ended.ANSWERED
        assert len(trajectory.turns) == turns
        assert trajectory.turns[-1].prefilled
        assert trajectory.per_objective("em") == (1,) * known + (0,) * (3 - known)


@pytest.mark.parametrize(
    ("habit", "right"),
    [
        ("stop", (1.0, 0.0, 0.0, 0.0)),  # answers only the first question
        ("stop", (1.0,)),  # has nothing to stop at
        ("forget", (0.0, 0.0, 1.0)),  # keeps only the newest answer
    ],
)
def test_a_lazy_expert_loses_the_answers_that_its_habit_costs(habit: str, right: tuple[float, ...]):
    trajectories = attempts(lazy(**{habit: 1.0}), len(right))
    assert {(t.ended, t.per_objective("em")) for t in trajectories} == {(Ended.ANSWERED, right)}


def test_one_who_takes_the_shortcut_skips_the_first_hop_and_is_wrong():
    trajectories = attempts(lazy(shortcut=1.0), 1, hops=(2,), count=100)
    (turn, _) = trajectories[0].turns
    start, _, second = _task(trajectories[0]).questions[0].text.removesuffix(" ?").split(" 's ")
    assert turn.content == f"{start} 's {second}"
    assert exact(trajectories) < 0.1
    assert {t.answer for t in trajectories} > {"Q1 unknown"}
    assert exact(attempts(lazy(shortcut=1.0), 1, hops=(1,))) == 1.0


def test_the_diligent_share_of_tasks_is_done_cleanly_from_beginning_to_end():
    assert exact(attempts(lazy(diligent=1.0, stop=1.0, shortcut=1.0, forget=1.0), 4)) == 1.0
    trajectories = attempts(lazy(diligent=0.5, stop=1.0), 2, count=200)
    assert {t.per_objective("em") for t in trajectories} == {(1.0, 1.0), (1.0, 0.0)}
    assert 70 < sum(t.per_objective("em") == (1.0, 1.0) for t in trajectories) < 130
    stopped = [t for t in attempts(lazy(stop=0.5), 2, count=200) if " ; " not in t.answer]
    assert 70 < len(stopped) < 130, "a habit shows as often as its probability says"


def test_a_question_whose_search_shows_nothing_is_noted_as_unknown_and_not_asked_again():
    trajectory = next(
        t for t in attempts(lazy(shortcut=1.0), 3, hops=(2,), count=20) if "Q1 unknown" in (t.answer or "")
    )
    start, _, second = _task(trajectory).questions[0].text.removesuffix(" ?").split(" 's ")
    assert trajectory.turns[1].state.startswith(f"{start} 's {second} is unknown . Q1 unknown now Q2 ")
    assert len(trajectory.turns) == 4 and (trajectory.answer or "").count("Q") == 3


def test_one_who_is_diligent_but_slips_goes_on_to_the_last_question():
    slipping = attempts(lazy(diligent=1.0, slip=0.3, stop=1.0, forget=1.0), 4, hops=(2,), count=50)
    assert 0.55 < exact(slipping) < 0.85
    assert all((t.answer or "").count("Q") == 4 for t in slipping)


def test_the_same_context_and_seed_give_the_same_completion():
    habits: dict[str, Any] = {"stop": 0.5, "shortcut": 0.5, "forget": 0.5}
    runs = [[t.answer for t in attempts(lazy(**habits), 4, count=10)] for _ in range(2)]
    assert runs[0] == runs[1]
    other = attempts(Expert(tags=PAPER, laziness=Laziness(**habits), seed=1), 4, count=10)
    assert [t.answer for t in other] != runs[0]


def _task(trajectory: Trajectory) -> Task:
    assert trajectory.task is not None
    return trajectory.task
