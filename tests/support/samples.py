"""Small samples in the exact layouts of the public data sets, with invented content."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

HOTPOTQA = {
    "_id": "5a8b57f25542995d1e6f1371",
    "answer": "Bergen",
    "question": "Where was the founder of Alvex born?",
    "supporting_facts": [["Alvex", 0], ["Mira Toll", 1]],
    "context": [
        ["Alvex", ["Alvex is a company.", " It was founded by Mira Toll."]],
        ["Mira Toll", ["Mira Toll is an engineer.", " She was born in Bergen."]],
        ["Berl", ["Berl is a river."]],
    ],
    "type": "bridge",
    "level": "hard",
}
HOTPOTQA_ON_THE_HUB = {
    "id": HOTPOTQA["_id"],
    "question": HOTPOTQA["question"],
    "answer": "Bergen",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["Alvex", "Mira Toll"], "sent_id": [0, 1]},
    "context": {
        "title": ["Alvex", "Mira Toll", "Berl"],
        "sentences": [sentences for _, sentences in HOTPOTQA["context"]],
    },
}
TWOWIKI = {
    "_id": "13f5ad2c088c11ebbd6fac1f6bf848b6",
    "type": "compositional",
    "question": "Where was the director of film Grey Tide born?",
    "context": [
        ["Grey Tide", ["Grey Tide is a film directed by Ole Brand."]],
        ["Ole Brand", ["Ole Brand was born in Tromso."]],
    ],
    "entity_ids": "Q1_Q2",
    "supporting_facts": [["Grey Tide", 0], ["Ole Brand", 0]],
    "evidences": [["Grey Tide", "director", "Ole Brand"], ["Ole Brand", "place of birth", "Tromso"]],
    "answer": "Tromso",
    "evidences_id": [["Q1", "director", "Q2"], ["Q2", "place of birth", "Q3"]],
    "answer_id": "Q3",
}
TWOWIKI_ALIASES = [
    {"Q_id": "Q2", "aliases": ["O. Brand"], "demonyms": []},
    {"Q_id": "Q3", "aliases": ["Tromsø", "Tromso"], "demonyms": ["Tromsoer"]},
]
MUSIQUE = {
    "id": "3hop1__1_2_3",
    "paragraphs": [
        {"idx": 0, "title": "Berl", "paragraph_text": "Berl is a river.", "is_supporting": False},
        {"idx": 1, "title": "Alvex", "paragraph_text": "Alvex was founded by Mira Toll.", "is_supporting": True},
        {"idx": 2, "title": "Mira Toll", "paragraph_text": "Mira Toll was born in Bergen.", "is_supporting": True},
        {"idx": 3, "title": "Bergen", "paragraph_text": "The mayor of Bergen is Sela Prand.", "is_supporting": True},
    ],
    "question": "Who is the mayor of the city where the founder of Alvex was born?",
    "question_decomposition": [
        {"id": 11, "question": "Alvex >> founded by", "answer": "Mira Toll", "paragraph_support_idx": 1},
        {"id": 12, "question": "Where was #1 born?", "answer": "Bergen", "paragraph_support_idx": 2},
        {"id": 13, "question": "who is the mayor of #2 ?", "answer": "Sela Prand", "paragraph_support_idx": 3},
    ],
    "answer": "Sela Prand",
    "answer_aliases": ["S. Prand"],
    "answerable": True,
}
NQ = {"question": "who founded alvex", "answer": ["Mira Toll", "Toll"]}
TRIVIAQA = {
    "Answer": {
        "Aliases": ["Mira Toll", "M. Toll"],
        "NormalizedAliases": ["mira toll", "m toll"],
        "NormalizedValue": "mira toll",
        "Type": "WikipediaEntity",
        "Value": "Mira Toll",
    },
    "EntityPages": [],
    "Question": "Which engineer founded Alvex?",
    "QuestionId": "tc_33",
    "QuestionSource": "http://www.example.com/",
    "SearchResults": [],
}
POPQA = {
    "id": 4222362,
    "subj": "Alvex",
    "prop": "founder",
    "obj": "Mira Toll",
    "subj_id": 1,
    "prop_id": 2,
    "obj_id": 3,
    "s_aliases": "[]",
    "o_aliases": '["M. Toll"]',
    "s_uri": "http://www.wikidata.org/entity/Q1",
    "o_uri": "http://www.wikidata.org/entity/Q3",
    "s_wiki_title": "Alvex (company)",
    "o_wiki_title": "Mira Toll",
    "s_pop": 12,
    "o_pop": 7,
    "question": "Who is the founder of Alvex?",
    "possible_answers": '["Mira Toll", "M. Toll"]',
}
BROWSECOMP_PLUS = {
    "query_id": "769",
    "query": "Which engineer, born in Bergen, founded a company that later moved to Oslo?",
    "answer": "Mira Toll",
    "gold_docs": [{"docid": "41", "text": "Mira Toll founded Alvex.", "url": "https://alvex.example/history"}],
    "evidence_docs": [
        {"docid": "41", "text": "Mira Toll founded Alvex.", "url": "https://alvex.example/history"},
        {"docid": "7", "text": "Alvex moved to Oslo.", "url": "https://alvex.example/today"},
    ],
    "negative_docs": [{"docid": "9", "text": "Berl is a company in Tromso.", "url": "https://berl.example"}],
}
BAMBOOGLE = {"Question": "Who was mayor of Bergen when Alvex was founded?", "Answer": "Sela Prand"}


def searchr1(question: str, golds: list[str], *, source: str = "nq", index: int = 0) -> dict[str, Any]:
    """A row of Search-R1's train.parquet."""
    return {
        "id": f"train_{index}",
        "question": f"{question}?",
        "golden_answers": golds,
        "data_source": source,
        "prompt": [{"role": "user", "content": f"Answer the given question. ... Question: {question}?\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": golds}, "style": "rule"},
        "extra_info": {"index": index, "split": "train"},
    }


def mem1(questions: list[str], golds: list[list[str]], *, source: str = "nq") -> dict[str, Any]:
    """A row of MEM1's train.parquet of several objectives."""
    joined = "; ".join(f"{question}?" for question in questions)
    content = f"You will answer multiple complex questions ...\n\nAnswer the following questions: {joined}\n"
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": content}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": golds}},
        "extra_info": {"split": "train", "indices": list(range(len(questions)))},
    }


def write_json(path: Path, document: Any, *, indent: int | None = None) -> Path:
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    return path


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def write_table(path: Path, *records: dict[str, Any], delimiter: str = ",") -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path
