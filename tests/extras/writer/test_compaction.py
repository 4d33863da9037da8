"""`POST /v1/responses/compact` of `mem1 serve-writer`, with OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from served_writers import Told, served

ITEMS = [
    {"role": "user", "content": "Book a dock for the crane."},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "ask", "arguments": '{"n": 1}', "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c1", "output": "The crane is CR-4471."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted.", "annotations": []}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Dock 14 from 3 May 2027."}]},
]


def test_items_are_compacted_to_the_users_messages_and_the_notes():
    writer = Told()
    with served(writer) as client:
        done: Any = client.responses.compact(model="mem1-writer", input=ITEMS)  # type: ignore[arg-type]
        assert done.object == "response.compaction" and done.usage.input_tokens == writer.read > 0
        *users, notes = [item.model_dump(exclude_unset=True, warnings=False) for item in done.output]
        texts = [part["text"] for item in users for part in item["content"]]
        assert texts == ["Book a dock for the crane.", "Dock 14 from 3 May 2027."]
        assert [item["role"] for item in users] == ["user", "user"] and notes["role"] == "assistant"
        assert notes["content"][0]["text"] == "crane: CR-4471 !\ndock: 14, from 3 May 2027"
        first = '[user] Book a dock for the crane.\n[assistant] ask({"n": 1})\n[result of ask] The crane is CR-4471.'
        assert writer.shown[0].exchange == first
        writer.shown.clear()
        again: Any = client.responses.compact(model="mem1-writer", input=[*users, notes, *ITEMS[2:4]])
        assert again.output[-1].content[0].text == "dock: 14, from 3 May 2027\ncrane: CR-4471 !"
        assert not any("dock: 14" in reading.exchange for reading in writer.shown)


def test_what_a_compaction_cannot_do_is_refused_and_one_of_another_server_is_kept():
    sealed = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
    with served(Told()) as client:
        done: Any = client.responses.compact(model="mem1-writer", input=[sealed, *ITEMS])  # type: ignore[list-item]
        assert done.output[0].model_dump(exclude_unset=True) == sealed
        text: Any = client.responses.compact(model="mem1-writer", input="The crane is CR-4471.")
        assert text.output[-1].content[0].text == "crane: CR-4471 !"
        with pytest.raises(openai.BadRequestError, match="no responses are kept here: send the items as input"):
            client.responses.compact(model="mem1-writer", input=ITEMS, previous_response_id="resp_1")  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="a result without the assistant message that called it"):
            orphan = {"type": "function_call_output", "call_id": "c9", "output": "x"}
            client.responses.compact(model="mem1-writer", input=[orphan])  # type: ignore[list-item]
