"""Public data sets as published, each translated by one function.

Multi-hop questions, with the paragraphs they need:

    HotpotQA   {"_id", "question", "answer", "supporting_facts": [[title, sentence]], "context": [[title, [sentence]]]}
    2Wiki      the same, "evidences": [[subject, relation, object]], and in later releases "answer_id", "evidences_id"
    MuSiQue    {"id", "question", "answer", "answer_aliases", "answerable",
                "paragraphs": [{"idx", "title", "paragraph_text", "is_supporting"}],
                "question_decomposition": [{"id", "question": "Where was #1 born?", "answer", "paragraph_support_idx"}]}

Decomposed, a question of 2Wiki or MuSiQue becomes its single hops: "Who founded Alvex?" and "Where was Mira Toll born?"
instead of "Where was the founder of Alvex born?". Questions and answers without passages:

    NQ-open     {"question": "who founded alvex", "answer": ["Mira Toll"]}                                JSONL
    TriviaQA    {"Data": [{"QuestionId": "tc_1", "Question": "...",
                           "Answer": {"Value": "Mira Toll", "Aliases": ["M. Toll"], "NormalizedAliases": [...]}}]}
    PopQA       id, subj, prop, obj, ..., question, possible_answers ('["Mira Toll", "M. Toll"]')         TSV or CSV
    Bamboogle   Question, Answer                                                                          CSV

Questions for deep research, with documents:

    BrowseComp-Plus   {"query_id", "query", "answer", "gold_docs": [{"docid", "text", "url"}], "evidence_docs": [...],
                       "negative_docs": [...]}, decrypted by its authors' scripts_build_index/decrypt_dataset.py

Sources: the READMEs of github.com/hotpotqa/hotpot, Alab-NII/2wikimultihop, StonyBrookNLP/musique,
google-research-datasets/natural-questions (nq_open) and mandarjoshi90/triviaqa (samples), the card of
huggingface.co/datasets/akariasai/PopQA, Press et al. 2023 (arXiv 2210.03350) for Bamboogle, and
github.com/texttron/BrowseComp-Plus at 97c637c.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from mem1.records import Passage, Question
from mem1.tasks.datasets.files import (
    Record,
    Sample,
    Wanted,
    distinct,
    first,
    hashed,
    identifier,
    items,
    mapping,
    passage,
    shown,
    strings,
    text,
)

HOTPOTQA, TWOWIKI, MUSIQUE = "hotpotqa", "2wikimultihopqa", "musique"
_REFERENCE = re.compile(r"#(\d+)")


def hotpotqa(record: Record, wanted: Wanted) -> Sample:
    """The question, and its gold and other paragraphs."""
    passages = tuple(_paragraphs(HOTPOTQA, record))
    return Sample((_whole(HOTPOTQA, record, passages, ()),), passages)


def twowiki(record: Record, wanted: Wanted) -> Sample:
    """The question, with known aliases of its answer; or its evidences as questions."""
    passages = tuple(_paragraphs(TWOWIKI, record))
    if wanted.decompose:
        return Sample(tuple(_evidences(record, passages, wanted)), passages)
    aliases = wanted.aliases.get(str(record.get("answer_id")), ())
    return Sample((_whole(TWOWIKI, record, passages, aliases),), passages)


def musique(record: Record, wanted: Wanted) -> Sample:
    """The question or its hops; none for unanswerable questions, which cannot be scored."""
    if record.get("answerable") is False:
        return Sample(())
    name = identifier(record.get("id"))
    made: dict[int, Passage] = {}
    gold: list[int] = []
    for number, value in enumerate(items(record, "paragraphs")):
        paragraph = mapping(value, f"paragraph {number}")
        index = paragraph.get("idx", number)
        if not isinstance(index, int):
            raise ValueError(f"'idx' of paragraph {number} must be an integer, not {shown(index)}")
        made[index] = passage(MUSIQUE, text(paragraph, "title"), text(paragraph, "paragraph_text"))
        if paragraph.get("is_supporting"):
            gold.append(index)
    given = items(record, "question_decomposition") if record.get("question_decomposition") else ()
    steps = [mapping(step, "a step") for step in given]
    if wanted.decompose:
        return Sample(tuple(_hops(name, steps, made)), tuple(made.values()))
    question = Question(
        id=name,
        text=text(record, "question"),
        answers=distinct((_answer(record), *strings(record.get("answer_aliases"), "'answer_aliases'"))),
        source=MUSIQUE,
        hops=_longest(steps) or None,
        passage_ids=tuple(made[index].id for index in gold),
        titles=distinct(made[index].title for index in gold),
    )
    return Sample((question,), tuple(made.values()))


def _whole(source: str, record: Record, passages: Sequence[Passage], aliases: Sequence[str]) -> Question:
    titles = distinct(_gold_titles(record))
    return Question(
        id=identifier(first(record, ("_id", "id"))),
        text=text(record, "question"),
        answers=distinct((_answer(record), *aliases)),
        source=source,
        passage_ids=tuple(p.id for p in passages if p.title in titles),
        titles=titles,
    )


def _answer(record: Record) -> str:
    """ "" without an answer, as in test sets; `Question` then reports it."""
    return text(record, "answer") if record.get("answer") is not None else ""


def _paragraphs(source: str, record: Record) -> Iterator[Passage]:
    context = record.get("context")
    if isinstance(context, dict):  # the data set hub's columns
        sentences = "content" if "content" in context else "sentences"
        context = list(zip(items(context, "title"), items(context, sentences), strict=True))
    if not isinstance(context, list):
        raise ValueError(f"'context' must be a list of [title, sentences], not {shown(context)}")
    for entry in context:
        if not (isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[0], str)):
            raise ValueError(f"an entry of 'context' must be [title, sentences], not {shown(entry)}")
        title, sentences = entry[0], strings(entry[1], f"the sentences of {entry[0]!r}")
        if sentences:
            yield passage(source, title, " ".join(sentence.strip() for sentence in sentences))


def _gold_titles(record: Record) -> list[str]:
    facts = record.get("supporting_facts") or []
    if isinstance(facts, dict):  # the data set hub's columns
        return list(strings(facts.get("title"), "the titles of 'supporting_facts'"))
    if not isinstance(facts, list) or not all(isinstance(f, list) and f and isinstance(f[0], str) for f in facts):
        raise ValueError(f"'supporting_facts' must be a list of [title, sentence number], not {shown(facts)}")
    return [fact[0] for fact in facts]


def _evidences(record: Record, passages: Sequence[Passage], wanted: Wanted) -> Iterator[Question]:
    name = identifier(first(record, ("_id", "id")))
    ids = _object_ids(record)
    if isinstance(given := record.get("evidences"), dict):  # the data set hub's columns
        columns = (items(given, name) for name in ("fact", "relation", "entity"))
        record = {**record, "evidences": list(map(list, zip(*columns, strict=True)))}
    for number, triple in enumerate(items(record, "evidences"), start=1):
        if not (isinstance(triple, list) and len(triple) == 3 and all(isinstance(part, str) for part in triple)):
            raise ValueError(f"an entry of 'evidences' must be [subject, relation, object], not {shown(triple)}")
        subject, relation, found = triple
        aliases = wanted.aliases.get(ids[number - 1], ()) if len(ids) >= number else ()
        yield Question(
            id=f"{name}#{number}",
            text=f"What is the {relation} of {subject}?",
            answers=distinct((found, *aliases)),
            source=TWOWIKI,
            hops=1,
            passage_ids=tuple(p.id for p in passages if p.title == subject),
            titles=(subject,),
        )


def _object_ids(record: Record) -> list[str]:
    triples = record.get("evidences_id") or []
    if not isinstance(triples, list) or not all(isinstance(one, list) and len(one) == 3 for one in triples):
        raise ValueError(f"'evidences_id' must be a list of [subject, relation, object], not {shown(triples)}")
    return [str(triple[2]) for triple in triples]


def _hops(name: str, steps: Sequence[Record], passages: dict[int, Passage]) -> Iterator[Question]:
    """Each step with earlier answers in place of #1, #2, ...; "Alvex >> founded by" becomes a sentence."""
    answers: list[str] = []
    for number, step in enumerate(steps, start=1):
        asked, spoken_of = text(step, "question"), [int(n) for n in _REFERENCE.findall(text(step, "question"))]
        if any(not 1 <= n < number for n in spoken_of):
            raise ValueError(f"step {number} of question {name!r} refers to a step that is not before it: {asked!r}")
        resolved = _REFERENCE.sub(lambda match: answers[int(match[1]) - 1], asked)
        subject, arrow, relation = (part.strip() for part in resolved.partition(">>"))
        support: Any = step.get("paragraph_support_idx")
        gold = [passages[support]] if support in passages else []
        answers.append(text(step, "answer"))
        yield Question(
            id=f"{name}#{number}",
            text=f"What is the {relation} of {subject}?" if arrow else resolved,
            answers=(answers[-1],),
            source=MUSIQUE,
            hops=1,
            passage_ids=tuple(p.id for p in gold),
            titles=distinct((*(answers[n - 1] for n in spoken_of), *(p.title for p in gold))),
        )


def _longest(steps: Sequence[Record]) -> int:
    lengths: list[int] = []
    for step in steps:
        before = [int(n) for n in _REFERENCE.findall(text(step, "question"))]
        lengths.append(1 + max((lengths[n - 1] for n in before if 1 <= n <= len(lengths)), default=0))
    return max(lengths, default=0)


NQ, TRIVIAQA, POPQA, BAMBOOGLE = "nq", "triviaqa", "popqa", "bamboogle"


def nq_open(record: Record, wanted: Wanted) -> Sample:
    """A question with an id made from its text, as it has none."""
    asked = text(record, "question")
    answers = strings(record.get("answer"), "'answer'")
    return Sample((Question(id=hashed(NQ, asked), text=asked, answers=distinct(answers), source=NQ),))


def triviaqa(record: Record, wanted: Wanted) -> Sample:
    """A question whose answers are the value, the aliases and their normalised forms."""
    asked = first(record, ("Question", "question"))
    answer = mapping(first(record, ("Answer", "answer")), "'Answer'")
    given = first(answer, ("Value", "value"))
    names: list[str] = [given] if isinstance(given, str) else []
    for field, lower in (("Aliases", "aliases"), ("NormalizedAliases", "normalized_aliases")):
        names += strings(first(answer, (field, lower)), f"{field!r}")
    if not isinstance(asked, str):
        raise ValueError(f"'Question' must be a string, not {shown(asked)}")
    name = identifier(first(record, ("QuestionId", "question_id")))
    return Sample((Question(id=name, text=asked, answers=distinct(names), source=TRIVIAQA),))


def popqa(record: Record, wanted: Wanted) -> Sample:
    """A question whose titles are its subject and, if given, the subject's Wikipedia title."""
    answers: Any = record.get("possible_answers")
    if isinstance(answers, str):
        try:
            answers = json.loads(answers)
        except ValueError as error:
            raise ValueError(f"'possible_answers' must be a JSON list in a string, not {shown(answers)}") from error
    question = Question(
        id=identifier(record.get("id")),
        text=text(record, "question"),
        answers=distinct(strings(answers, "'possible_answers'")),
        source=POPQA,
        hops=1,
        titles=distinct(str(record.get(field) or "") for field in ("subj", "s_wiki_title")),
    )
    return Sample((question,))


def bamboogle(record: Record, wanted: Wanted) -> Sample:
    """A question with an id made from its text, as it has none."""
    asked, answer = text(record, "Question"), text(record, "Answer")
    return Sample((Question(id=hashed(BAMBOOGLE, asked), text=asked, answers=distinct((answer,)), source=BAMBOOGLE),))


BROWSECOMP_PLUS = "browsecomp-plus"
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")


def browsecomp_plus(record: Record, wanted: Wanted) -> Sample:
    """The question and its documents: those with the answer, other evidence, and hard negatives.

    Raises ValueError for a record that is still encrypted.
    """
    asked = text(record, "query")
    if _BASE64.fullmatch(asked.strip()):
        raise ValueError("the query is still encrypted; run BrowseComp-Plus's scripts_build_index/decrypt_dataset.py")
    documents = {name: tuple(_documents(record, name)) for name in ("gold_docs", "evidence_docs", "negative_docs")}
    question = Question(
        id=identifier(record.get("query_id")),
        text=asked,
        answers=distinct((text(record, "answer"),)),
        source=BROWSECOMP_PLUS,
        passage_ids=tuple(dict.fromkeys(p.id for p in documents["evidence_docs"] + documents["gold_docs"])),
    )
    return Sample((question,), tuple(p for group in documents.values() for p in group))


def _documents(record: Record, field: str) -> Iterator[Passage]:
    for document in items(record, field) if field in record else ():
        content = mapping(document, f"a document of {field!r}")
        yield Passage(text(content, "docid"), "", text(content, "text"))
