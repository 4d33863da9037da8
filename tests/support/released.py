"""Lines as MEM1's release writes them."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from mem1.cli.main import app

PROMPT = "You will answer multiple complex questions ... Answer the following questions: who founded alvex?; where?\n"
GOLDS = [["Mira Toll", "M. Toll"], ["Bergen"]]
SEARCH = "<think>look for alvex</think>\n<search>alvex</search>"
FOUND = "<information>\n[HINT]You have 5 turns left.[/HINT]\nDoc 1(Title: Alvex) Mira Toll of Bergen\n\n</information>"


def call(*arguments: object):
    """The command's result; an error of the user is raised, as main() prints it."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def line(index: int, *responses: str, **fields: Any) -> dict[str, Any]:
    """A line with one turn a response: searches with results, except the last, which answers."""
    record: dict[str, Any] = {"q": PROMPT}
    for number, response in enumerate(responses):
        state, closing, _ = response.partition("</think>")
        record[f"t{number}"] = state + closing if closing else ""
        record[f"r{number}"] = response
        if number < len(responses) - 1:
            record[f"i{number}"] = FOUND
    written = {"index": index, "hash": f"{index:064x}", "Golden_answer": GOLDS, "Exact_match": 2}
    return {**record, **written, "Model_estimated_match": 1, **fields}


def answered(text: str) -> str:
    return f"<think>done</think>\n<answer> {text} </answer>"
