"""A page of another site, in a real Chromium, against servers on loopback."""

from __future__ import annotations

from typing import Any

import pytest
from corpora import TOWNS
from policies import CHAT, tiny
from servers import app_in_a_thread
from sites import content, site
from worlds import CODEC

from mem1.engines.policy_sampler import Sampler
from mem1.engines.policy_server import make_app as make_policy
from mem1.retrieval import BM25
from mem1.retrieval.server import make_app as make_retriever

pytestmark = pytest.mark.browser
ASK = """async ([address, mode, type]) => {
    const asked = {method: 'POST', mode, headers: {'content-type': type}, body: '{"queries": ["Oslo"]}'};
    try { return (await (await fetch(address, asked)).text()); } catch (error) { return 'refused'; }
}"""


def test_a_foreign_page_neither_reads_passages_nor_pauses_a_policy(browser: Any):
    sampler = Sampler(tiny(), CODEC)
    with (
        site({"/": content("<p>a page</p>", "text/html")}) as foreign,
        app_in_a_thread(make_policy(sampler, chat=CHAT)) as policy,
        app_in_a_thread(make_retriever(BM25.build(TOWNS))) as retriever,
    ):
        page = browser.new_page()
        page.goto(foreign.url.replace("127.0.0.1", "localhost"))
        for mode, kind in (("no-cors", "text/plain"), ("cors", "text/plain"), ("cors", "application/json")):
            for address in (f"{policy}/pause", f"{retriever}/retrieve"):
                assert "Oslo" not in page.evaluate(ASK, [address, mode, kind])
        form = "address => { document.body.innerHTML = `<form method=post action=${address}>` }"
        page.evaluate(form, f"{policy}/pause")
        page.evaluate("document.querySelector('form').submit()")
        page.wait_for_url(f"{policy}/pause")
        assert "pages of other sites" in page.content()
        page.goto(retriever + "/health")
        assert "Oslo" in page.evaluate(ASK, [retriever + "/retrieve", "cors", "application/json"])
        page.goto(retriever + "/metrics")
        assert 'outcome="answered"} 1.0\n' in page.inner_text("body"), "that of its own page alone"
        page.close()
    assert not sampler.paused
