"""Questions that depend on one another: references, depths, exact answers, and that they can be solved."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest
from corpora import SHARED_QA, needs_shared_qa
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import MUSIQUE, TWOWIKI, write_lines
from tag_sets import PAPER_NOTES, PAPER_NOTES_RECALL
from worlds import CODEC, SAMPLING, rollout

from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.envs.search import MultihopTasks
from mem1.errors import UserError
from mem1.memory.recall import NOTHING
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER, RECALL, RELEASED, Tags
from mem1.records import Ended, Question, Task, Trajectory
from mem1.tasks.atlas import AtlasMaterial, Expert, Laziness, World, make_world
from mem1.tasks.bridge_questions import LinkedQuestions
from mem1.tasks.compose import Dependence, compose_dependent, groups, smallest
from mem1.tasks.datasets import read_questions, read_tasks, write_passages, write_questions, write_tasks
from mem1.tasks.prompts import TaskTemplate, render

WORLD = make_world(1, entities=60)
KINDS: list[Dependence] = ["chain", "shared", "comparison"]
MANY = settings(max_examples=60)


def draw(material: Any, dependence: Dependence, depth: int, objectives: int, *, count: int = 1, seed: int = 0):
    return compose_dependent(
        material,
        TaskTemplate(prompt="plain", tags=PAPER, corpus="world"),
        dependence=dependence,
        depth=depth,
        objectives=objectives,
        count=count,
        seed=seed,
    )


def test_the_worlds_of_one_source_do_not_share_the_order_of_their_questions():
    source = AtlasTasks(worlds=8, composition="chain").source("train", PAPER)
    tasks = source.tasks(objectives=4, count=400, seed=5)
    orders = [tuple(q.depends_on for q in task.questions) for task in tasks]
    assert len(set(orders)) == 3
    alike = sum(first == second for first, second in itertools.pairwise(orders)) / (len(orders) - 1)
    assert 0.25 < alike < 0.42, "a third by chance; tasks that follow one another are from different worlds"


@pytest.mark.parametrize("tags", [PAPER, PAPER_NOTES], ids=lambda tags: tags.name)
def test_the_expert_writes_a_question_as_it_was_asked_and_then_with_the_name(tags: Tags):
    source = AtlasTasks(worlds=4, composition="chain").source("train", tags)
    context = "constant" if tags.note is None else "notes"
    run = rollout(Expert(tags=tags), source.environment, context=context, tags=tags, codec=Codec(atlas_tokenizer(tags)))
    attempts = run(source.tasks(objectives=4, count=12, seed=0), sampling=SAMPLING)
    begun = 0
    for attempt in attempts:
        assert attempt.per_objective("em") == (1.0,) * 4
        assert attempt.task is not None
        asked = dict(re.findall(r"Q(\d+) (answer [^?]*\?)", attempt.task.prompt))
        for turn in attempt.turns:
            for number, label, name, rest in re.findall(r"now Q(\d+).* answer Q(\d+) (\w+ \w+) ('s .*?\?)", turn.state):
                assert name == attempt.task.questions[int(label) - 1].answers[0]
                assert asked[number] == f"answer Q{label} {rest}"
                assert f"now Q{number} {asked[number]} answer Q{label} {name} {rest} Q{number} " in turn.state
                begun += turn.content.startswith(f"{name} 's ")
    assert begun == 2 * len(attempts), "each of the two references of a task, once"


@pytest.mark.parametrize("composition", ["chain", "comparison"])
@pytest.mark.parametrize("context", ["notebook(1)", "dropout(50)"])
def test_the_expert_recalls_a_note_that_is_out_of_sight_once(composition: str, context: str):
    tags = PAPER_NOTES_RECALL
    source = AtlasTasks(worlds=4, composition=composition, entities=60).source("train", tags)  # type: ignore[arg-type]
    codec = Codec(atlas_tokenizer(tags))
    run = rollout(Expert(tags=tags), source.environment, context=context, tags=tags, codec=codec)
    recalls = 0
    for attempt in run(source.tasks(objectives=8, count=12, seed=0), sampling=SAMPLING):
        assert attempt.task is not None and attempt.ended == Ended.ANSWERED
        notes = [note for turn in attempt.turns for note in turn.notes]
        assert len(notes) == len(set(notes)), "what is recalled is not noted again"
        assert composition != "chain" or attempt.per_objective("em") == (1.0,) * 8
        asked = dict(re.findall(r"Q(\d+) (answer [^?]*\?)", attempt.task.prompt))
        for turn, following in itertools.pairwise(attempt.turns):
            if turn.action != RECALL:
                continue
            recalls += 1
            label = turn.content.removeprefix("Q")
            (number,) = re.findall(r"now Q(\d+)", turn.state)
            name = attempt.task.questions[int(label) - 1].answers[0]
            assert turn.observation.endswith(f"note: Q{label} {name}")
            assert codec.unknown_id not in turn.observation_ids
            assert f"now Q{number} {asked[number]} " in turn.state and f"answer Q{label} unknown " in turn.state
            if composition == "comparison" and f"Q{number} unknown" in "".join(following.notes):
                (other,) = set(re.findall(r"answer Q(\d+)", asked[number])) - {label}  # gone out of sight meanwhile
                before = codec.decode(turn.context_ids).split("? <IS>")[-1] + turn.text
                assert re.search(rf"<note> Q{other} [A-Z]", before)
                continue
            assert f"now Q{number} {asked[number]} " in following.state
            assert f"answer Q{label} {name} " in following.state and following.action == "search"
    assert recalls >= 8


def test_in_the_last_turn_the_expert_answers_with_what_is_noted():
    working = "Q1 Ana Brul 's seat ? Q2 answer Q1 's mayor ? <IS> now Q2 answer Q1 's mayor ? "
    working += "answer Q1 unknown 's mayor ? Q2 last </IS> <recall> Q1 </recall>"
    result = "<info> [HINT] You have {} left. [/HINT] Turn 1, note: Q1 Moru Kest </info>"
    expert = Expert(tags=PAPER_NOTES_RECALL)
    assert expert(f"{working} {result.format('2 turns')} ").endswith(" <query> Moru Kest 's mayor </query>")
    assert expert(f"{working} {result.format('1 turn')} ") == "<IS> done </IS> <answer> notes </answer>"


def test_a_question_about_an_answer_that_nobody_noted_is_unknown_after_one_recall():
    tags = PAPER_NOTES_RECALL
    source = AtlasTasks(worlds=4, composition="chain", depth=2, entities=60).source("train", tags)
    expert = Expert(tags=tags, laziness=Laziness(forget=0.9))
    run = rollout(expert, source.environment, context="notes", tags=tags, codec=Codec(atlas_tokenizer(tags)))
    in_vain = 0
    for attempt in run(source.tasks(objectives=6, count=12, seed=0), sampling=SAMPLING):
        recalled = [turn for turn in attempt.turns if turn.action == RECALL]
        assert all(NOTHING in turn.observation for turn in recalled)
        assert not any(f"{turn.content} " in note for turn in recalled for note in turn.notes)
        labels = [re.findall(r"now Q(\d+)", turn.state)[0] for turn in recalled]
        assert len(labels) == len(set(labels))
        for label in labels:
            assert attempt.per_objective("em")[int(label) - 1] == 0.0
        in_vain += len(recalled)
    assert in_vain > 5


def depth_by_hand(questions: tuple[Question, ...], number: int) -> int:
    return max((1 + depth_by_hand(questions, earlier) for earlier in questions[number - 1].depends_on), default=0)


def check_structure(task: Task, dependence: Dependence, depth: int) -> None:
    """References point backwards, the depth is as asked, no question stands twice."""
    for number, question in enumerate(task.questions, start=1):
        assert all(earlier < number for earlier in question.depends_on)
        assert [int(n) for n in re.findall(r"\bQ(\d+)\b", question.text)] == list(question.depends_on)
        assert task.depths[number - 1] == depth_by_hand(task.questions, number)
    assert max(task.depths) == depth
    assert len({q.id for q in task.questions}) == task.objectives
    referred = [earlier for q in task.questions for earlier in q.depends_on]
    if dependence == "chain":
        assert len(set(referred)) == len(referred)
    if dependence == "shared":
        assert any(referred.count(number) == 2 for number in referred)
    if dependence == "comparison":
        assert any(len(q.depends_on) == 2 for q in task.questions)


def walked(world: World, question: Question, answers: list[str]) -> str:
    """The answer, found by reading the text and walking the facts, with the answers of the questions before."""

    def name(text: str) -> str:
        reference = re.fullmatch(r"answer Q(\d+)", text)
        return answers[int(reference[1]) - 1] if reference else text

    subject, *relations = question.text.removesuffix(" ?").split(" 's ")
    names = [name(text) for text in subject.split(" ; ")]
    relations[-1], _, value = relations[-1].partition(" is ")
    reached = list(names)
    for relation in relations:
        reached = [world.facts[at, relation] for at in reached]
    if not value:
        assert len(names) == 1
        return reached[0]
    (answer,) = [at for at, found in zip(names, reached, strict=True) if found == value]
    return answer


@MANY
@given(
    st.sampled_from(KINDS), st.integers(1, 4), st.integers(0, 6), st.integers(0, 99), st.sampled_from([(1,), (1, 2)])
)
def test_a_task_of_atlas_is_as_deep_as_asked_and_its_answers_are_found_by_walking_the_world(
    dependence: Dependence, depth: int, more: int, seed: int, hops: tuple[int, ...]
):
    objectives = smallest(dependence, depth) + more
    (task,) = draw(AtlasMaterial(WORLD, hops), dependence, depth, objectives, seed=seed)
    assert task.objectives == objectives
    check_structure(task, dependence, depth)
    answers: list[str] = []
    for question in task.questions:
        answers.append(walked(WORLD, question, answers))
        assert question.answers == (answers[-1],)
        assert question.hops in (*hops, 1)
    assert (task,) == tuple(draw(AtlasMaterial(WORLD, hops), dependence, depth, objectives, seed=seed))


def test_the_passages_of_a_question_state_what_it_needs():
    text_of = {p.id: p.text for p in WORLD.passages()}
    for task in draw(AtlasMaterial(WORLD), "comparison", 2, 8, count=20):
        for question in task.questions:
            shown = " ".join(text_of[i] for i in question.passage_ids)
            value = re.search(r" is (\w+ \w+) \?", question.text)
            assert f" is {value[1] if value else question.answers[0]} ." in shown


@given(st.sampled_from(KINDS), st.integers(1, 5), st.integers(0, 12))
def test_the_groups_of_a_task_have_all_its_questions(dependence: Dependence, depth: int, more: int):
    objectives = smallest(dependence, depth) + more
    made = groups(dependence, objectives, depth)
    assert sum(map(len, made)) == objectives
    assert all(reference < position for g in made for position, refs in enumerate(g) for reference in refs)
    with pytest.raises(UserError, match=f"depth {depth} of composition {dependence} needs at least"):
        groups(dependence, smallest(dependence, depth) - 1, depth)


def test_the_groups_by_hand():
    assert groups("chain", 5, 2) == [((), (0,), (1,)), ((), (0,))]
    assert groups("shared", 4, 2) == [((), (0,), (1,), (1,))]
    assert groups("shared", 5, 1) == [((), (0,), (0,)), ((),), ((),)]
    assert groups("comparison", 4, 1) == [((), (), (0, 1)), ((),)]
    assert groups("comparison", 4, 2) == [((), (0,), (), (1, 2))]


def test_the_questions_of_several_groups_are_mixed():
    orders = {
        tuple(map(bool, (q.depends_on for q in t.questions)))
        for t in draw(AtlasMaterial(WORLD), "chain", 1, 4, count=20)
    }
    assert {(False, True, False, True), (False, False, True, True)} <= orders


@pytest.mark.parametrize(("dependence", "depth"), [("chain", 1), ("chain", 2), ("shared", 2), ("comparison", 1)])
def test_references_may_be_kept_close_in_an_order_that_is_still_random(dependence: Dependence, depth: int):
    form = TaskTemplate(prompt="plain", tags=PAPER, corpus="world")
    tasks = compose_dependent(
        AtlasMaterial(WORLD), form, dependence=dependence, depth=depth, objectives=12, count=8, seed=0, reach=3
    )
    distances = {n - e for task in tasks for n, q in enumerate(task.questions, start=1) for e in q.depends_on}
    assert max(distances) <= 3
    if smallest(dependence, depth) == 2:  # two groups fit into four questions
        assert distances == {1, 2, 3}
    for task in tasks:
        check_structure(task, dependence, depth)
    far = [draw(AtlasMaterial(WORLD), dependence, depth, 12, seed=seed)[0] for seed in range(8)]
    assert max(n - e for task in far for n, q in enumerate(task.questions, start=1) for e in q.depends_on) > 3


def test_a_reach_without_dependence_is_refused():
    with pytest.raises(ValueError, match="reach applies to the compositions chain"):
        AtlasTasks(reach=3)


def test_every_word_of_a_dependent_question_is_one_token_of_the_tiny_policys_tokenizer():
    unknown = CODEC.encode("[UNK]")[0]
    for dependence in KINDS:
        for task in draw(AtlasMaterial(WORLD), dependence, 2, 6, count=10):
            ids = CODEC.encode(task.prompt)
            assert unknown not in ids
            assert len(ids) == len(task.prompt.split())


def attempts(
    config: AtlasTasks, objectives: int, *, laziness: Laziness | None = None, count: int = 24
) -> list[Trajectory]:
    source = config.source("evaluation", PAPER)
    expert = Expert(tags=PAPER, laziness=laziness or Laziness())
    tasks = source.tasks(objectives=objectives, count=count, seed=5)
    return rollout(expert, source.environment)(tasks, sampling=SAMPLING)


@pytest.mark.parametrize(
    ("dependence", "depth", "objectives"), [("chain", 3, 4), ("shared", 2, 6), ("comparison", 2, 8)]
)
def test_the_clean_expert_solves_dependent_tasks_by_searching(dependence: Dependence, depth: int, objectives: int):
    config = AtlasTasks(entities=100, worlds=2, composition=dependence, depth=depth)
    trajectories = attempts(config, objectives)
    assert {t.per_objective("em") for t in trajectories} == {(1.0,) * objectives}
    assert {t.ended for t in trajectories} == {Ended.ANSWERED}
    assert all(t.task and max(t.task.depths) == depth for t in trajectories)
    # one search a hop and no more: what was found is taken from memory
    assert all(t.task and len(t.turns) == 1 + sum(q.hops or 0 for q in t.task.questions) for t in trajectories)


def test_a_question_about_an_answer_that_was_not_found_is_unknown_too():
    config = AtlasTasks(entities=100, worlds=1, composition="chain", depth=2, hops=(2,))
    trajectories = attempts(config, 3, laziness=Laziness(shortcut=1.0), count=40)
    lost = [t for t in trajectories if "Q1 unknown" in t.answer]
    assert len(lost) > 10
    assert all("Q2 unknown" in t.answer and "Q3 unknown" in t.answer for t in lost)
    assert all(len(t.turns) == 2 for t in lost), "there was nothing to search for"


def test_an_expert_that_forgets_an_answer_cannot_go_on_from_it():
    config = AtlasTasks(entities=100, worlds=1, composition="shared", depth=1, hops=(1,))
    trajectories = attempts(config, 3, laziness=Laziness(forget=1.0))
    # at Q2 it holds Q1's answer; noting Q2's it drops Q1's, and Q3 needs it
    assert {t.per_objective("em")[2] for t in trajectories} == {0.0}


def test_a_depth_that_the_objectives_do_not_allow_is_explained():
    source = AtlasTasks(entities=60, worlds=1, composition="chain", depth=3).source("train", PAPER)
    with pytest.raises(UserError, match="depth 3 of composition chain needs at least 4 objectives, not 3"):
        source.tasks(objectives=3, count=1, seed=0)


@pytest.mark.parametrize("tasks", [AtlasTasks, lambda **more: MultihopTasks(questions="q", corpus="c", **more)])
def test_a_depth_without_dependence_and_an_unknown_composition_are_refused(tasks: Any):
    with pytest.raises(
        pydantic.ValidationError, match="depth applies to the compositions chain, shared and comparison"
    ):
        tasks(depth=2)
    with pytest.raises(pydantic.ValidationError, match="composition"):
        tasks(composition="braid")


def test_a_reference_to_a_later_question_is_no_task():
    questions = tuple(Question(id=i, text="Who?", answers=("A",), depends_on=(2,)) for i in ("a", "b"))
    with pytest.raises(ValueError, match=r"Q1 depends on \[2\]; a question may depend only on earlier ones"):
        Task(id="t", questions=questions, prompt="p", turn_limit=1)


# real questions


def question(name: str, text: str, *answers: str, titles: tuple[str, ...] = ()) -> Question:
    return Question(id=name, text=text, answers=answers, titles=titles, source="hotpotqa")


FOUNDER = question("founder", "Who founded Alvex?", "Mira Toll", "M. Toll", titles=("Alvex",))
BORN = question("born", "Where was Mira Toll born?", "Bergen", titles=("Mira Toll",))
WIFE = question("wife", "Whom did Mira Toll marry?", "Ole Brand", titles=("Mira Toll", "Ole Brand"))
MAYOR = question("mayor", "Bergen is governed by which mayor?", "Sela Prand", titles=("Bergen",))
ALONE = question("alone", "who owns berl", "no one")
FIVE = [FOUNDER, BORN, WIFE, MAYOR, ALONE]


def texts(task: Task) -> list[str]:
    return [q.text for q in task.questions]


def test_a_chain_of_real_questions_goes_through_the_bridge_entities():
    (task,) = draw(LinkedQuestions(FIVE), "chain", 2, 3)
    assert texts(task) == [
        "Who founded Alvex?",
        "Where was the answer to Q1 born?",
        "The answer to Q2 is governed by which mayor?",
    ]
    assert [q.depends_on for q in task.questions] == [(), (1,), (2,)]
    assert [q.answers for q in task.questions] == [FOUNDER.answers, BORN.answers, MAYOR.answers]
    assert task.prompt.startswith("Q1 Who founded Alvex? Q2 Where was the answer to Q1 born?")


def test_two_real_questions_share_an_entity_that_an_earlier_one_finds():
    (task,) = draw(LinkedQuestions(FIVE), "shared", 1, 3)
    assert texts(task)[0] == "Who founded Alvex?"
    assert set(texts(task)[1:]) == {"Where was the answer to Q1 born?", "Whom did the answer to Q1 marry?"}


def test_a_comparison_of_real_answers_is_by_the_alphabet():
    people = [question(str(i), f"who is {i}", name) for i, name in enumerate(("Ada", "Bo", "Cy"))]
    for task in draw(LinkedQuestions(people), "comparison", 1, 3, count=20):
        one, other, compared = task.questions
        assert compared.text == "Which comes first in alphabetical order, the answer to Q1 or the answer to Q2?"
        assert compared.answers == min(one.answers, other.answers)
        assert compared.depends_on == (1, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Ada", "Zoe"), ("Bo",)),
        (("yes",), ("Bo",)),
        (("1901",), ("Bo",)),
        (("The Bo",), ("Cy", "Ulf")),
        (("Bo",), ("bo",)),
        (("Z\u00fcrich",), ("Zwolle",)),
        (("S\u00f8ren",), ("Stephen",)),
    ],
    ids=["aliases disagree", "no name", "a number", "its article decides", "the same", "an accent", "another letter"],
)
def test_answers_that_the_alphabet_does_not_tell_apart_are_not_compared(one: tuple[str, ...], other: tuple[str, ...]):
    pair = LinkedQuestions([question("a", "who is a", *one), question("b", "who is b", *other)])
    with pytest.raises(UserError, match="depend on one another in this way"):
        draw(pair, "comparison", 1, 3)


@pytest.mark.parametrize(
    "follower",
    [
        question("x", "Where was Mira Tollesen born?", "Bergen", titles=("Mira Toll",)),
        question("x", "Where was Mira Toll Hansen born?", "Bergen", titles=("Mira Toll",)),
        question("x", "Where was Mira Toll born, and did Mira Toll like it?", "Bergen", titles=("Mira Toll",)),
        question("x", "Where was Mira Toll (film) made?", "Bergen", titles=("Mira Toll (film)",)),
        question("x", "Who is older, Mira Toll or Ole Brand?", "Mira Toll", titles=("Mira Toll", "Ole Brand")),
        question("x", "Where was Mira Toll born?", "Bergen"),
        question("x", "Who made the film Mira Toll and Sons?", "Bo", titles=("Mira Toll", "Mira Toll and Sons")),
    ],
    ids=["part of a word", "part of a name", "twice", "a namesake", "its own answer", "no title", "a longer title"],
)
def test_a_name_that_may_mean_something_else_links_nothing(follower: Question):
    assert LinkedQuestions([FOUNDER, follower]).links == {}
    assert list(LinkedQuestions([FOUNDER, BORN]).links) == [0]


def test_too_few_links_are_an_error_that_says_how_many_there_are():
    with pytest.raises(UserError, match=r"these 5 questions, with 3 links .*, contain no 4 questions"):
        draw(LinkedQuestions(FIVE), "chain", 3, 4)


def test_the_single_hops_of_musique_and_2wiki_are_chains_by_construction(tmp_path: Path):
    hops = read_questions(write_lines(tmp_path / "m.jsonl", MUSIQUE), decompose=True)
    (task,) = draw(LinkedQuestions(hops), "chain", 2, 3)
    assert texts(task)[1:] == ["Where was the answer to Q1 born?", "who is the mayor of the answer to Q2 ?"]
    hops = read_questions(write_lines(tmp_path / "2.jsonl", TWOWIKI), decompose=True)
    (task,) = draw(LinkedQuestions(hops), "chain", 1, 2)
    assert texts(task) == ["What is the director of Grey Tide?", "What is the place of birth of the answer to Q1?"]


@MANY
@given(st.data())
def test_tasks_of_linked_questions_have_the_structure_that_was_asked_for(data: st.DataObject):
    rng = random.Random(data.draw(st.integers(0, 999)))
    names = [f"Name {chr(65 + i)}{chr(97 + j)}" for i, j in itertools.product(range(6), range(5))]
    made = [
        question(f"q{i}", f"Who follows {subject}?", rng.choice([n for n in names if n != subject]), titles=(subject,))
        for i, subject in enumerate(names * 3)
    ]
    dependence, depth = data.draw(st.sampled_from(KINDS)), data.draw(st.integers(1, 3))
    objectives = smallest(dependence, depth) + data.draw(st.integers(0, 4))
    (task,) = draw(LinkedQuestions(made), dependence, depth, objectives, seed=data.draw(st.integers(0, 99)))
    check_structure(task, dependence, depth)
    gold = {q.id: q for q in made}
    for asked in task.questions:
        if len(asked.depends_on) == 1:
            (earlier,) = (task.questions[n - 1] for n in asked.depends_on)
            said = asked.text.replace(f"the answer to Q{asked.depends_on[0]}", earlier.answers[0])
            assert (said, asked.answers) == (gold[asked.id].text, gold[asked.id].answers)


def test_every_prompt_numbers_questions_that_speak_of_one_another():
    (task,) = draw(LinkedQuestions(FIVE), "chain", 1, 2)
    assert (
        render("released", task.questions, RELEASED)
        .rstrip()
        .endswith(f"questions: Q1 {task.questions[0].text}; Q2 {task.questions[1].text}")
    )


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_dependent_tasks_are_written_and_asked_as_they_stand(name: str, tmp_path: Path):
    tasks = draw(LinkedQuestions(FIVE), "chain", 2, 3, count=1) + draw(LinkedQuestions(FIVE), "shared", 1, 3, count=1)
    write_tasks(tmp_path / name, tasks)
    assert read_tasks(tmp_path / name) == [task.questions for task in tasks]
    with pytest.raises(UserError, match="refers to the answers of other questions of its task"):
        read_questions(tmp_path / name)
    config = MultihopTasks(questions=str(tmp_path / name), corpus="none", composition="file", prompt="plain")
    source = config.source("evaluation", PAPER)
    asked = source.tasks(objectives=3, count=2, seed=0)
    assert {task.prompt for task in asked} == {task.prompt for task in tasks}
    assert {max(task.depths) for task in asked} == {2, 1}
    with pytest.raises(UserError, match=r"the file has 2 tasks of 3 objectives, not 3"):
        source.tasks(objectives=3, count=3, seed=0)
    with pytest.raises(UserError, match=r"the file has 0 tasks of 2 objectives, not 1 \(its tasks have 3\)"):
        source.tasks(objectives=2, count=1, seed=0)


def test_a_composed_file_with_a_forward_reference_is_named_with_its_line(tmp_path: Path):
    record = {"id": "t", "questions": [{"id": "a", "text": "Who?", "answers": ["A"], "depends_on": [2]}]}
    with pytest.raises(UserError, match=r"t\.jsonl:1: Q1 depends on \[2\]"):
        read_tasks(write_lines(tmp_path / "t.jsonl", record))


def test_a_dependent_question_in_both_halves_is_found_by_its_id(tmp_path: Path):
    train, evaluation = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    write_tasks(train, draw(LinkedQuestions(FIVE), "chain", 1, 2))
    write_tasks(evaluation, draw(LinkedQuestions(FIVE), "chain", 1, 2))
    config = MultihopTasks(
        questions=str(evaluation), train_questions=str(train), corpus="none", composition="file", prompt="plain"
    )
    with pytest.raises(UserError, match="2 of 2 evaluation questions are also training questions"):
        config.source("train", PAPER).tasks(objectives=2, count=1, seed=0)


def test_a_corpus_and_questions_in_files_compose_into_chains(tmp_path: Path):
    write_questions(tmp_path / "q.jsonl", FIVE)
    write_passages(tmp_path / "c.jsonl", [])
    config = MultihopTasks(
        questions=str(tmp_path / "q.jsonl"),
        corpus=str(tmp_path / "c.jsonl"),
        composition="chain",
        depth=2,
        prompt="plain",
    )
    (task,) = config.source("evaluation", PAPER).tasks(objectives=3, count=1, seed=0)
    assert (task.corpus, task.depths) == ("passages", (0, 1, 2))


@needs_shared_qa
def test_whole_questions_of_real_data_sets_are_linked_and_compared():
    linked = LinkedQuestions(read_questions(SHARED_QA / "train.jsonl"))
    assert len(linked.links) >= 10
    cases: list[tuple[Dependence, int, int]] = [("chain", 1, 2), ("comparison", 2, 4)]
    for dependence, depth, objectives in cases:
        for task in draw(linked, dependence, depth, objectives, count=10):
            check_structure(task, dependence, depth)
