"""Memories that a model writes: what it is given, how much is kept, and a model behind a server."""

from __future__ import annotations

from typing import Any

import pytest
from chat_servers import Reply, chat_server
from probed import jobs

from mem1.errors import UserError
from mem1.extras.probe.compressors import Kept
from mem1.extras.probe.pieces import Piece, exchanges
from mem1.extras.probe.writers import PLAIN, Counting, ExchangeNotes, Summary, parts, served
from mem1.messages.bounds import estimated
from mem1.messages.wholes import CUT

PIECES = jobs(40).pieces


class Model:
    """Replies with `texts` in turn, the last one again and again."""

    def __init__(self, *texts: str) -> None:
        self.asked: list[str] = []
        self._texts = texts

    def __call__(self, messages: list[Any]) -> str:
        self.asked.append(messages[-1]["content"])
        return self._texts[min(len(self.asked), len(self._texts)) - 1]


def test_a_summary_is_written_anew_with_every_part():
    model = Model("First.", "Second.")
    kept = Summary(PLAIN, model).compress(Kept("Before."), PIECES, 1_700)
    assert len(model.asked) == 2 and kept.text == "Second."
    assert "Summary so far:\nBefore." in model.asked[0] and "Summary so far:\nFirst." in model.asked[1]
    assert "Use at most 1190 words" in model.asked[0]
    assert all(estimated(asked) <= 4_096 for asked in model.asked)
    assert all(any(piece.text in asked for asked in model.asked) for piece in PIECES)


def test_a_long_summary_is_cut():
    kept = Summary(PLAIN, Model("many words " * 900)).compress(Kept(), PIECES, 100)
    assert 60 < estimated(kept.text) <= 100


def test_notes_are_written_once_for_each_exchange_and_the_newest_stay():
    model = Model("- host of job 0 is host-9999.internal\n- host of job 0", "nothing", "- one\n- two", "- more")
    kept = ExchangeNotes(model).compress(Kept("- before"), PIECES, 1_000)
    assert len(model.asked) == 40
    assert kept.text.splitlines()[:4] == ["- before", "host of job 0", "one", "two"]
    assert estimated(ExchangeNotes(Model("- a line of notes")).compress(Kept(), PIECES, 50).text) <= 50


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 20_000, f"{'ab,' * 30_000} and so on"])
def test_a_text_without_spaces_is_cut_within_its_words_and_all_of_it_is_there(text: str):
    found = list(parts([Piece("result", text, 0)], 50))
    assert "".join(found).replace(CUT, "").replace(" ", "") == text.replace(" ", "")
    assert max(map(estimated, found)) <= 50 and min(map(estimated, found[:-1])) > 40
    assert list(parts([Piece("result", "\U0001f600" * 3, 0)], 1)) == ["\U0001f600"] * 3, "at least a letter at a time"


def test_exchanges_hold_what_the_user_says_behind_them_and_parts_hold_everything():
    found = list(exchanges(PIECES))
    assert len(found) == 40 and [piece.role for piece in found[9]] == ["said", "result", "user"]
    texts = list(parts(PIECES, 90))
    assert all(estimated(text) <= 100 for text in texts)
    assert " ".join(" ".join(texts).split()) == " ".join(" ".join(piece.text for piece in PIECES).split())


def test_tokens_of_a_model_are_counted():
    counting = Counting(Model("a reply of some words"))
    counting([{"role": "user", "content": "a question"}])
    assert counting.read > 3 and counting.written == estimated("a reply of some words")


def test_a_model_behind_a_server():
    def behave(body: dict[str, Any], number: int) -> Reply:
        assert body["model"] == "writer" and body["temperature"] == 0
        return Reply(text=f"Reply {number} to {body['messages'][-1]['content']}")

    with chat_server(behave) as server:
        assert served(server.url, "writer")([{"role": "user", "content": "this"}]).endswith("to this")
    with pytest.raises(UserError, match=r"the model gives no reply: .*127\.0\.0\.1:9"):
        served("http://127.0.0.1:9/v1", "writer", first_wait_s=0.0)([])
    with pytest.raises(UserError, match="'nowhere' is not the address of a model server"):
        served("nowhere", "writer")
