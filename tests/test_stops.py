"""Stop strings are where a model that stops at them would have written them."""

from __future__ import annotations

import pytest

from mem1.engines.stop_strings import complete, opened

STOPS = ("</query>", "</answer>")


@pytest.mark.parametrize(
    ("text", "named", "whole"),
    [
        # left out: the server names it, or the tag that is open is closed
        ("<IS> a </IS> <query> Oslo ", "</query>", "<IS> a </IS> <query> Oslo </query>"),
        ("<IS> a </IS> <query> Oslo ", None, "<IS> a </IS> <query> Oslo </query>"),
        ("<answer> Q1 Oslo", None, "<answer> Q1 Oslo</answer>"),
        # the server says that the model ended its text by itself
        ("<query> Oslo", "", "<query> Oslo"),
        # nothing is open
        ("<IS> a </IS>", None, "<IS> a </IS>"),
        ("", None, ""),
        # kept by the server
        ("<query> Oslo </query>", None, "<query> Oslo </query>"),
        ("<query> Oslo </query>", "</query>", "<query> Oslo </query>"),
        # not known to the server: the model went on
        ("<query> a </query> <answer> b </answer>", "", "<query> a </query>"),
    ],
)
def test_a_stop_string_is_put_back_or_cut_after(text: str, named: str | None, whole: str):
    assert complete(text, STOPS, stopped=True, named=named) == whole


def test_a_completion_that_used_its_tokens_is_left_as_it_is_unless_it_had_stopped():
    assert complete("<query> Oslo", STOPS, stopped=False) == "<query> Oslo"
    assert complete("<query> Oslo </query> and", STOPS, stopped=False) == "<query> Oslo </query>"


def test_the_tag_that_the_context_had_opened_is_closed():
    assert complete("Q1 Oslo", STOPS, stopped=True, opening="<answer>") == "Q1 Oslo</answer>"
    assert complete("Q1 Oslo", STOPS, stopped=False, opening="<answer>") == "Q1 Oslo"


@pytest.mark.parametrize(
    ("context", "tag"),
    [
        ("Q1 <answer>", "<answer>"),
        ("Q1 <answer> \n", "<answer>"),
        ("<answer> ... </answer>", ""),
        ("<IS>", ""),
        ("", ""),
    ],
)
def test_an_opened_tag_is_seen_at_the_end_of_a_context(context: str, tag: str):
    assert opened(context, STOPS) == tag
