"""A key that was sent to a server is in nothing that is said of its answers, in whatever form the server repeats it."""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Callable
from urllib.parse import quote

import httpx
import pytest
from model_servers import content_with
from sites import site
from worlds import CODEC, SAMPLING, rollout, shelf, task

from mem1.engines.dialects import Text
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer, Servers
from mem1.evaluation.judge import KEY_VARIABLE, Judge, JudgeServer
from mem1.evaluation.judge_prompt import JudgedAnswer
from mem1.net.api_keys import redact, repeats
from mem1.net.post import TryFailed, post
from mem1.protocol import PAPER
from mem1.records import Ended

KEY = "sk-very/SECRET+0123_4567-89"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "for an address": lambda key: quote(key, safe=""),
    "every character for an address": lambda key: "".join(f"%{ord(c):02x}" for c in key),
    "twice for an address": lambda key: quote(quote(key, safe=""), safe=""),
    "for JSON": lambda key: key.replace("/", "\\/"),
    "every character for JSON": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "for HTML": lambda key: "".join(f"&#x{ord(c):x};" for c in key),
    "names for HTML": lambda key: html.escape(key).replace("+", "&plus;").replace("/", "&sol;"),
    "base 64": lambda key: base64.b64encode(key.encode()).decode(),
    "base 64 with more": lambda key: base64.b64encode(f"Bearer {key}!".encode()).decode(),
    "base 64 for an address": lambda key: base64.urlsafe_b64encode(f"x{key}".encode()).decode(),
    "base 16": lambda key: key.encode().hex(),
    "capitals": str.upper,
    "small letters": str.lower,
    "blanks": " ".join,
    "on two lines": lambda key: key[:9] + "\r\n " + key[9:],
    "quoted-printable": lambda key: "".join(f"={ord(c):02X}" for c in key),
}


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_of_a_key_in_any_form(form: str):
    said = f"Location: https://example.org/?key={FORMS[form](KEY)}&x=1"
    if form == "as it is":
        assert redact(said, KEY) == "Location: https://example.org/?key=***&x=1"
    else:
        assert redact(said, KEY) == "***"
    assert redact(f"{KEY} {said}", KEY).count(KEY) == 0


@pytest.mark.parametrize("text", ["", "no such model %s", "100 % of 5 &amp; 6", "\\u00e9t\u00e9 \\n", "c2sgdmVyeQ=="])
def test_what_does_not_hold_the_key_stays(text: str):
    assert redact(text, KEY) == redact(text, None) == redact(text, "") == text


def test_a_word_that_servers_of_ones_own_take_for_a_key_may_stand_in_answers():
    assert not repeats("the box is EMPTY, empty", "EMPTY")
    assert redact("the box is empty", "EMPTY") == "the box is empty"
    assert repeats(f"x {KEY}", KEY) and repeats(quote(KEY, safe=""), KEY) and not repeats("x", KEY)
    assert not repeats("%25" * 99 + "25", KEY), "what cannot be told is an answer all the same"


def test_a_long_text_takes_no_long_time():
    start = time.process_time()
    for text in ("%25" * 100_000, "&amp;" * 100_000, "\\u0041" * 50_000, "a" * 1_000_000):
        redact(text, KEY)
    assert time.process_time() - start < 5


def refusals(form: str) -> dict[str, httpx.Response]:
    told = FORMS[form](KEY)
    on_a_line = told.replace("\r\n", "")
    return {
        "body": httpx.Response(401, text=f"bad key {told}"),
        "location": httpx.Response(302, headers={"location": f"http://evil.example/?{on_a_line}"}),
        "reason": httpx.Response(403, extensions={"reason_phrase": f"No {on_a_line}".encode()}),
        "answer": httpx.Response(200, text=f'{{"choices": [{{"text": "{on_a_line}"'),
        "reason to try again": httpx.Response(503, extensions={"reason_phrase": f"No {on_a_line}".encode()}),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", refusals("as it is"))
def test_no_failure_of_an_attempt_holds_the_key(where: str, form: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", KEY)
    asked: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        assert request.headers["authorization"] == f"Bearer {KEY}"
        return refusals(form)[where]

    config = ModelServer(urls=("http://a/v1",), model="m", api_key_env="MY_KEY", tries=2, first_wait_s=0.0)
    servers = Servers(config, transport=httpx.MockTransport(respond))
    engine = OpenAIEngine(servers, config, Text(), CODEC, PAPER.stop_strings)
    (attempt,) = rollout(engine, shelf("a"), codec=CODEC)([task("x")], sampling=SAMPLING)
    assert attempt.ended is Ended.ENGINE_FAILED and set(asked) == {"a"}
    detail = attempt.detail or ""
    assert detail and FORMS[form](KEY) not in detail and redact(detail, KEY) == detail
    assert "\n" not in detail and detail.isprintable()


def test_what_a_library_says_of_a_broken_answer_holds_no_key_either():
    def respond(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError(f"illegal header line: bytearray(b'x: {quote(KEY, safe='')}')")

    client = httpx.Client(transport=httpx.MockTransport(respond), headers={"authorization": f"Bearer {KEY}"})
    with pytest.raises(TryFailed) as failure:
        post(client, "http://a", b"", timeout_s=1.0, now=time.monotonic)
    assert str(failure.value) == "***"


def test_a_judge_that_refuses_does_not_bring_its_key_into_a_verdict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with site({"/v1/chat/completions": content_with(403, {"error": quote(KEY, safe="")})}) as server:
        (verdict,) = Judge(JudgeServer(base_url=f"{server.url}/v1", model="m"))([JudgedAnswer("a", ("b",), "c")])
    assert verdict.correct is None and redact(verdict.why, KEY) == verdict.why
