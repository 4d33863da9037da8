# ruff: noqa: E501
"""Chat templates like those of well-known models, and a small tokenizer that has one."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from mem1.engines.codec import Codec
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER

QWEN25_LIKE = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
"""As Qwen2.5 writes tools, calls and results."""
QWEN3_LIKE = (
    QWEN25_LIKE.replace(
        "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}",
        "{%- set said = message.content %}"
        "{%- if message.role == 'assistant' and '</think>' in said %}{%- set said = said.split('</think>')[-1] %}"
        "{%- endif %}"
        "{{- '<|im_start|>' + message.role + '\\n' }}"
        "{%- if message.role == 'assistant' and loop.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
        "{{- said + '<|im_end|>\\n' }}",
    )
    .replace("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", "You think.")
    .replace(
        "{{- '<|im_start|>assistant\\n' }}",
        "{{- '<|im_start|>assistant\\n' }}"
        "{%- if enable_thinking is defined and not enable_thinking %}"
        "{{- '<think>\\n\\n</think>\\n\\n' }}"
        "{%- endif %}",
    )
)
"""As Qwen3 treats thoughts: earlier ones are left out, and a last message gets an empty one."""
R1_LIKE = QWEN25_LIKE.replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}")
"""Opens every message of the model with a thought."""
LLAMA_LIKE = (
    "{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MARKS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


TEXT = """Who is the mayor of Oslo? First. Oslo is a city. {"name": "search", "arguments": {"query": "Oslo"}}
You have 3 turns left. You have 1 turn left. You must answer now. found
{"type": "function", "function": {"name": "search", "description": "Searches the documents and returns the best
passages.", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}"""


@cache
def small_tokenizer() -> str:
    """JSON of a byte-level tokenizer with the special tokens of all these templates."""
    made = Tokenizer.from_str(bpe_tokenizer([TEXT, QWEN25_LIKE] * 20, vocab_size=900, tags=PAPER).to_str())
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in _MARKS])
    return made.to_str()


def tokenizer_with(template: str) -> tuple[Any, Codec]:
    """A transformers tokenizer with this chat template, and its codec."""
    made = Tokenizer.from_str(small_tokenizer())
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template), Codec(made)


def random_template(rng: random.Random) -> str:
    """A template of the same family, with other marks, blanks, words and ways to write results."""
    start, end = rng.choice([("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|eot_id|>")])
    after_role, after_end = rng.choice(["\\n", "\\n\\n", " "]), rng.choice(["\\n", "", "\\n\\n"])
    system = rng.choice(["", f"{start}system{after_role}You may call tools.{end}{after_end}"])
    merged, role = rng.random() < 0.5, rng.choice(["user", "tool"])
    before = f"{start}{role}{after_role}"
    first = "(loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool')" if merged else "true"
    last = "loop.last or (messages[loop.index0 + 1].role != 'tool')" if merged else "true"
    open_, close = rng.choice([("<tool_response>\\n", "\\n</tool_response>"), ("", "")])
    head = f"{start}assistant{after_role}"
    trim = rng.choice(["", " | trim"])
    return (
        f"{{{{- '{system}' }}}}"
        "{%- if tools %}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}"
        "{%- for message in messages %}"
        "{%- if message.role == 'tool' %}"
        f"{{%- if {first} %}}{{{{- '{before}' }}}}{{%- endif %}}"
        f"{{{{- '{open_}' + message.content + '{close}' }}}}"
        f"{{%- if {last} %}}{{{{- '{end}{after_end}' }}}}{{%- endif %}}"
        "{%- else %}"
        f"{{{{- '{start}' + message.role + '{after_role}' + (message.content{trim}) + '{end}{after_end}' }}}}"
        "{%- endif %}{%- endfor %}"
        f"{{%- if add_generation_prompt %}}{{{{- '{head}' }}}}{{%- endif %}}"
    )
