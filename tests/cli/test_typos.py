"""A misspelt name is found before anything heavy is loaded, and the message says what was probably meant."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MEANT = {
    "train atlas-quik": "no recipe 'atlas-quik' (did you mean atlas-quick?)",
    "train atlas-quick rl.lerning_rate=1": "did you mean rl.learning_rate?",
    "train atlas-quick memory=ful": "unknown memory 'ful' (did you mean full?)",
    "train atlas-quick protocol.base=papr": "unknown tags 'papr' (did you mean paper?)",
    "train atlas-quick tasks.kind=atlass": "unknown tasks 'atlass' (did you mean atlas?)",
    "train atlas-quick tasks.prompt=plan": "unknown prompt 'plan' (did you mean plain?)",
    "train atlas-quick rl.algorithm.name=grop": "unknown algorithm 'grop' (did you mean grpo?)",
    "train atlas-quick model.device=gpu": "model.device (from the command line): string should match",
    "train atlas-quick --ot runs": "No such option: --ot (Possible options: ",
    "train own-documents model.path=models/a": "model.new=null drops the recipe's new model",
    "quickstart --memory notebok(4)": "unknown memory 'notebok(4)' (did you mean notebook(4)?)",
    "plan atlas-quik": "did you mean atlas-quick?",
    "verify atlas-quik": "did you mean atlas-quick?",
    "verify memory=fold(0)": "unknown memory 'fold(0)'; known",
    "verify memory=fold(-1)": "unknown memory 'fold(-1)'; known",
    "eval --corpus passages.jsonl": "--corpus needs questions about it (--questions FILE; ",
    "data atlas-quik --out tasks.parquet": "did you mean atlas-quick?",
    "eval evaluation.taks=3": "did you mean evaluation.tasks?",
    "run engine.kind=servr": "unknown engine 'servr' (did you mean server?)",
    "probe flod(8)": "unknown memory 'flod(8)' (did you mean fold(8)?)",
    "bench --base-url http://127.0.0.1:9/v1 --model m --memory flod(8)": "'flod(8)' (did you mean fold(8)?)",
    "bench --policy shipped --memory ful": "unknown memory 'ful' (did you mean full?)",
    "bench --script unlimited --suite quik": "unknown suite 'quik' (did you mean quick?)",
    "probe --kind ofice": "unknown 'ofice' (did you mean office?)",
    "report runs/no-such-run": "no folder runs/no-such-run",
    "export runs/no-such-run out": "no folder runs/no-such-run",
}
RUN = """
import json, sys
from mem1.cli.main import main
loaded = {}
for command in json.load(sys.stdin):
    print("#", command, file=sys.stderr)
    try:
        main(command.split(" "))
    except SystemExit as ended:
        loaded[command] = [ended.code, [name for name in ("torch", "transformers") if name in sys.modules]]
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[str], str]]:
    """Command -> its exit code, the heavy libraries that it has loaded, its message. All run in one process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([*MEANT]),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path_factory.mktemp("typos"),
    )
    _, *messages = done.stderr.split("# ")
    said = dict(message.split("\n", 1) for message in messages)
    return {command: (*outcome, said[command]) for command, outcome in json.loads(done.stdout).items()}


@pytest.mark.parametrize("command", MEANT)
def test_it_is_found_without_torch_and_the_message_says_what_was_meant(command: str, outcomes):
    code, loaded, said = outcomes[command]
    assert (code, loaded) == (2, [])
    assert MEANT[command] in said
