"""Calls that models write as text are read in their styles; what only speaks of calls stays text."""

from __future__ import annotations

import json
from time import process_time

import pytest

from mem1.agent.chat import read_completion
from mem1.messages.text_calls import Found, calls_in
from mem1.messages.thoughts import ENDS

BAR = "\uff5c"
TOOLS = {"search": {"query", "most"}}
SEARCH = '{"name": "search", "arguments": {"query": "Oslo"}}'
STYLES = {
    "Hermes, Qwen": f"<tool_call>\n{SEARCH}\n</tool_call>",
    "Hermes without an end": f"<tool_call>\n{SEARCH}",
    "Qwen3-Coder": "<tool_call>\n<function=search>\n<parameter=query>\nOslo\n</parameter>\n</function>\n</tool_call>",
    "Qwen3-Coder without a frame": "<function=search>\n<parameter=query>\nOslo\n</parameter>\n</function>",
    "GLM": "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
    "Llama 3": '<|python_tag|>{"name": "search", "parameters": {"query": "Oslo"}}<|eom_id|>',
    "Llama 3, bare": '{"type": "function", "name": "search", "parameters": {"query": "Oslo"}}',
    "Llama 3.1, own functions": '<function=search>{"query": "Oslo"}</function>',
    "Llama 4": '[search(query="Oslo")]',
    "Gemma": '```tool_code\nsearch(query="Oslo")\n```',
    "Mistral": f"[TOOL_CALLS] [{SEARCH}]",
    "Mistral, newer": '[TOOL_CALLS]search[ARGS]{"query": "Oslo"}',
    "Mistral, with ids": '[TOOL_CALLS]search[CALL_ID]abc[ARGS]{"query": "Oslo"}',
    "Mistral, newest": '[TOOL_CALLS]search{"query": "Oslo"}',
    "DeepSeek V3": (
        f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>search\n```json\n"
        f'{{"query": "Oslo"}}\n```<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>'
    ),
    "DeepSeek V3.1": (
        f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>search<{BAR}tool▁sep{BAR}>"
        f'{{"query": "Oslo"}}<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>'
    ),
    "Kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>"
        '{"query": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "Granite": f"<|tool_call|>[{SEARCH}]",
    "MiniMax": (
        '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">Oslo</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    "Anthropic's manner": (
        '<function_calls><invoke name="search"><parameter name="query">Oslo</parameter></invoke></function_calls>'
    ),
    "gpt-oss": '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "Oslo"}<|call|>',
    "JSON in a fence": f"```json\n{SEARCH}\n```",
    "a completion's calls": json.dumps(
        {"tool_calls": [{"id": "a", "function": {"name": "search", "arguments": '{"query": "Oslo"}'}}]}
    ),
    "DeepSeek V3.2": (
        f'<{BAR}DSML{BAR}function_calls>\n<{BAR}DSML{BAR}invoke name="search">\n'
        f'<{BAR}DSML{BAR}parameter name="query" string="true">Oslo</{BAR}DSML{BAR}parameter>\n'
        f"</{BAR}DSML{BAR}invoke>\n</{BAR}DSML{BAR}function_calls>"
    ),
    "DeepSeek V4": (
        f'<{BAR}DSML{BAR}tool_calls>\n<{BAR}DSML{BAR}invoke name="search">\n'
        f'<{BAR}DSML{BAR}parameter name="query" string="true">Oslo</{BAR}DSML{BAR}parameter>\n'
        f"</{BAR}DSML{BAR}invoke>\n</{BAR}DSML{BAR}tool_calls>"
    ),
    "DeepSeek V4 with other bars": (
        '<|DSML|tool_calls><|DSML|invoke name="search"><|DSML|parameter name="query" string="true">Oslo'
        "</|DSML|parameter></|DSML|invoke></|DSML|tool_calls>"
    ),
    "DeepSeek V4 without a frame": (
        f'<{BAR}DSML{BAR}invoke name="search">\n<{BAR}DSML{BAR}parameter name="query" string="true">Oslo'
        f"</{BAR}DSML{BAR}parameter>\n</{BAR}DSML{BAR}invoke>"
    ),
    "DeepSeek V3.1 without a frame": (
        f'<{BAR}tool▁call▁begin{BAR}>search<{BAR}tool▁sep{BAR}>{{"query": "Oslo"}}<{BAR}tool▁call▁end{BAR}>'
    ),
    "Kimi without a frame": (
        '<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"query": "Oslo"}<|tool_call_end|>'
    ),
    "Seed": "<seed:tool_call>\n<function=search>\n<parameter=query>Oslo</parameter>\n</function>\n</seed:tool_call>",
    "LongCat": f"<longcat_tool_call>\n{SEARCH}\n</longcat_tool_call>",
    "LFM2": '<|tool_call_start|>[search(query="Oslo")]<|tool_call_end|>',
    "Llama 4 with marks": '<|python_start|>[search(query="Oslo")]<|python_end|>',
    "OLMo": '<function_calls>\nsearch(query="Oslo")\n</function_calls>',
    "FunctionGemma": "<start_function_call>call:search{query:<escape>Oslo<escape>}<end_function_call>",
    "Gemma 4": '<|tool_call>call:search{query:<|"|>Oslo<|"|>}<tool_call|>',
    "Apertus": '<|tools_prefix|>[{"search": {"query": "Oslo"}}]<|tools_suffix|>',
    "gpt-oss with its head": (
        "<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
        '{"query": "Oslo"}<|call|>'
    ),
    "gpt-oss, the tool first": (
        '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query": "Oslo"}<|call|>'
    ),
    "a fence in a mark": f"<tool_call>\n```json\n{SEARCH}\n```\n</tool_call>",
    "the end of a mark alone": f"{SEARCH}\n</tool_call>",
    "a mark with the name": '<tool_call name="search">{"query": "Oslo"}</tool_call>',
    "a mark of no known style": f"<tool_request>\n{SEARCH}\n</tool_request>",
    "capitals in place of a mark": f"TOOL_CALL_BLOCK>>>\n{SEARCH}\n<<<END_TOOL_CALL_BLOCK>>>",
    "brackets with the name": '[tool call search] {"query": "Oslo"}',
    "Llama's name and JSON": '<function=search{"query": "Oslo"}</function>',
    "a tag for the tool, one for each argument": "<search>\n<query>Oslo</query>\n</search>",
    "ReAct in bold": '**Action:** search\n**Action Input:** {"query": "Oslo"}',
    "InternLM": '<|action_start|><|plugin|>{"name": "search", "parameters": {"query": "Oslo"}}<|action_end|>',
    "Cohere": '<|START_ACTION|>[{"tool_name": "search", "parameters": {"query": "Oslo"}}]<|END_ACTION|>',
    "Cohere, older": 'Action: ```json\n[{"tool_name": "search", "parameters": {"query": "Oslo"}}]\n```',
    "Nemotron": f"<TOOLCALL>[{SEARCH}]</TOOLCALL>",
    "functools": f"functools[{SEARCH}]",
    "Gemma, printed": '```tool_code\nprint(default_api.search(query="Oslo"))\n```',
    "JSON as Python writes it": "<tool_call>{'name': 'search', 'arguments': {'query': 'Oslo'}}</tool_call>",
    "a bracket too many": f"<tool_call>\n{SEARCH}}}\n</tool_call>",
    "LangChain": '{"action": "search", "action_input": {"query": "Oslo"}}',
    "LangChain, structured": 'Action:\n```json\n{"action": "search", "action_input": {"query": "Oslo"}}\n```',
    "smolagents": "Calling tools:\n[{'id': '1', 'function': {'name': 'search', 'arguments': {'query': 'Oslo'}}}]",
    "OpenAI's several": '{"tool_uses": [{"recipient_name": "functions.search", "parameters": {"query": "Oslo"}}]}',
    "ReAct with a result of its own": 'Action: search\nAction Input: {"query": "Oslo"}\nObservation: x\nAction: no',
    "ReAct": 'Thought: hm\nAction: search\nAction Input: {"query": "Oslo"}',
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_call_is_read_in_every_style(style: str):
    found = calls_in(STYLES[style], TOOLS)
    assert not found.broken and found.text == ""
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [("search", {"query": "Oslo"})]


@pytest.mark.parametrize(
    "style",
    [
        "Hermes, Qwen",
        "Qwen3-Coder",
        "MiniMax",
        "DeepSeek V3.1",
        "Kimi",
        "Llama 3",
        "DeepSeek V4",
        "DeepSeek V3.1 without a frame",
        "Kimi without a frame",
        "Gemma 4",
    ],
)
def test_text_before_calls_and_a_second_call_are_read_too(style: str):
    found = calls_in(f"I look it up.\n\n{STYLES[style]}\n{STYLES[style]}", TOOLS)
    assert found.text == "I look it up." and len(found.calls) == 2


@pytest.mark.parametrize("style", ["Hermes, Qwen", "Mistral", "Qwen3-Coder without a frame", "JSON in a fence"])
def test_a_call_behind_a_word_is_read_where_the_text_ends_with_it_and_the_tool_is_there(style: str):
    text = f"I look it up: {STYLES[style]}"
    found = calls_in(text, TOOLS)
    assert found.text == "I look it up:"
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [("search", {"query": "Oslo"})]
    assert calls_in(text, {"fetch": {"url"}}).text == text
    assert calls_in(f"{text} is a call.", TOOLS).calls == ()


@pytest.mark.parametrize("style", ["a mark of no known style", "a tag for the tool, one for each argument"])
def test_between_unknown_marks_a_call_ends_the_text_and_its_tool_is_there(style: str):
    text = f"I look it up.\n\n{STYLES[style]}"
    assert calls_in(text, TOOLS).text == "I look it up." and len(calls_in(text, TOOLS).calls) == 1
    behind = f"{text}\n\nThat is the form of a call."
    assert calls_in(text, {"fetch": {"url"}}) == Found(text=text) and calls_in(behind, TOOLS) == Found(text=behind)


def test_a_plain_action_input_is_the_only_parameters_text():
    (call,) = calls_in("Thought: hm\nAction: search\nAction Input: capital of Norway", TOOLS).calls
    assert (call.arguments, call.typed) == ('"capital of Norway"', False)


def test_line_breaks_in_arguments_are_read_as_they_are():
    (call,) = calls_in('<tool_call>{"name": "run", "arguments": {"code": "a\nb"}}</tool_call>', {"run": {"code"}}).calls
    assert json.loads(call.arguments) == {"code": "a\nb"}


def test_values_that_were_texts_are_said_to_be():
    values = "<parameter=query>a <b>bold</b> b</parameter><parameter=most>3</parameter>"
    text = f"<tool_call><function=search>{values}</function></tool_call>"
    (call,) = calls_in(text, TOOLS).calls
    assert json.loads(call.arguments) == {"query": "a <b>bold</b> b", "most": "3"} and not call.typed


@pytest.mark.parametrize(
    "text",
    [
        "Oslo",
        "",
        "7",
        '"search"',
        "[1, 2]",
        '{"name": "Oslo", "population": 700000}',
        '{"name": "fetch", "arguments": {}}',
        "search()  # is what to call",
        "fetch(url='x')",
        f"Models write <tool_call>{SEARCH}</tool_call> to call a tool.",
        f"For example:\n```\n<tool_call>{SEARCH}</tool_call>\n```",
        f"The log says: {SEARCH}",
        f"The mail says:\n\n> <tool_call>\n> {SEARCH}\n> </tool_call>",
        f"It says:\n > > <tool_call>{SEARCH}</tool_call>",
        f"For example:\n```\n<tool_request>{SEARCH}</tool_request>\n```",
        "Write `<|tool_call_start|>` before a call, and the <some_tool_call> that you like.",
        'Results of search: {"query": "Oslo"}',
        "<search>Oslo is the capital of <b>Norway</b>.</search>",
        "<page><search><query>Oslo</query></search></page>",
        "<search><result>Oslo</result></search>",
        "Here it is:\n<search>\n<query>Oslo</query>\n<hits>3</hits>\n</search>",
    ],
)
def test_what_is_no_call_stays_text(text: str):
    found = calls_in(text, TOOLS)
    assert (found.text, found.calls, found.broken) == (text, (), False)


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "search", "argum', "<tool_call></tool_call>", "[TOOL_CALLS]", "<|python_tag|>print(1)",
     "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>Os", "<tool_call>search\n<arg_key>que",
     "<function=search><parameter=", f"<tool_call>{'[' * 50_000}</tool_call>",
     f"[TOOL_CALLS][{', '.join([SEARCH] * 200)}]", "<|some_tool_call|>\nsearch Oslo", "<start_function_call>call:x{",
     f"<{BAR}DSML{BAR}tool_calls>\n<{BAR}DSML{BAR}inv"],
)  # fmt: skip
def test_a_mark_without_a_call_behind_it_is_broken(text: str):
    found = calls_in(text, TOOLS)
    assert found.broken and found.text == text and not found.calls


def test_a_call_of_an_unknown_tool_is_a_call_where_its_style_has_a_mark():
    (call,) = calls_in(f"<tool_call>{SEARCH}</tool_call>", {}).calls
    assert call.name == "search"


@pytest.mark.parametrize(
    "piece", ["<tool_call>", "\n<tool_call>", "<function=", "\n<function=a><parameter=b>", "[TOOL_CALLS]", "[", '{"a":',
              "(", "-", "Action Input:", "x <tool_call>", "<invoke name=",
              "<a>", "<search>", "{ <search>", "</search>", "<|", "<tooltool", "{a:", "<start_function_call>call:a{b:"],
)  # fmt: skip
def test_long_texts_take_no_longer_than_their_length(piece: str):
    text = piece * (300_000 // len(piece))
    before = process_time()
    calls_in(text, TOOLS)
    assert process_time() - before < 2


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("functions.read:0", "read"),
        ("default_api.read file", "read_file"),
        ("files/read", "files_read"),
        ("x" * 80, "x" * 64),
        (" ", "unknown"),
    ],
)
def test_the_name_of_a_call_is_one_that_providers_take_back(written: str, name: str):
    text = json.dumps({"name": written, "arguments": {}})
    (call,) = calls_in(f"<tool_call>{text}</tool_call>", {}).calls
    whole = {"function": {"name": written, "arguments": "{}"}}
    (same,) = read_completion({"content": None, "tool_calls": [whole]}).calls
    assert call.name == same.name == name


@pytest.mark.parametrize("end", ENDS)
def test_a_token_that_ends_a_message_is_no_text_behind_a_call(end: str):
    text = f"<tool_call>{SEARCH}</tool_call>\n</tool_call>{end}"
    assert calls_in(text, TOOLS).text == "" and len(calls_in(text, TOOLS).calls) == 1


def test_nobody_is_warned_of_what_a_model_wrote(recwarn: pytest.WarningsRecorder):
    for text in ("[1and 2, 0x1for]", "run(limit=1and 2)", "[run(limit=7in)]", "{'a': 1or 2}"):
        calls_in(text, {})
    assert not recwarn.list
