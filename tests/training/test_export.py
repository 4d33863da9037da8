"""Policies for others: folders, GGUF files, the hub, and the card that tells where they come from."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hubs import Hub
from hubs import a_hub as a_hub
from plain_models import TEXTS, made, weights
from terminals import Terminal
from terminals import terminal as terminal

from mem1.cli.main import main
from mem1.engines.codec import Codec
from mem1.policy.folders import policy_folder
from mem1.policy.policy import load_policy
from mem1.policy.protocol import SAVED

RECIPE = """
model.path = "{start}"
protocol = "tags"
tasks = {{ kind = "atlas", entities = 40, worlds = 1, questions_per_world = 50 }}
budget = {{ completion_extra = 400, context = 4000 }}
checkpoint_every = 1
writers = []
[sft]
steps = 2
objectives = [1]
tasks = 4
tokens = 256
[rl]
curriculum = [{{ steps = 1, objectives = [1] }}]
tasks_per_step = 1
group_size = 2
[evaluation]
objectives = [1, 2]
tasks = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three steps on a tiny Qwen2, evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    start = made(folder / "start", "qwen2", max_position_embeddings=4096)
    (start / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# tiny\n")
    (folder / "recipe.toml").write_text(RECIPE.format(start=start))
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "argv", ["mem1", "train", str(folder / "recipe.toml"), "--out", str(folder / "mine")])
    with contextlib.suppress(SystemExit):
        main()
    patch.undo()
    assert (folder / "mine" / "result.json").is_file()
    return folder / "mine"


def head(card: str) -> dict[str, object]:
    return yaml.safe_load(card.split("---\n")[1])


class TestFolders:
    @pytest.mark.parametrize("source", ["", "policy", "checkpoints/checkpoint-000003"])
    def test_a_run_its_policy_and_its_last_checkpoint_give_the_same_folder(
        self, run: Path, source: str, tmp_path: Path, terminal: Terminal
    ):
        code, out, _ = terminal("export", run / source, tmp_path / "out", "--json")
        assert code == 0 and json.loads(out) == {"policy": str(tmp_path / "out")}
        own = {path.name for path in (run / "policy").iterdir()}
        assert {path.name for path in (tmp_path / "out").iterdir()} == own | {"README.md"} >= {SAVED, "tokenizer.json"}
        assert load_policy(tmp_path / "out").fingerprint() == load_policy(run / "policy").fingerprint()
        assert (tmp_path / "out" / SAVED).read_bytes() == (run / "policy" / SAVED).read_bytes()

    def test_an_unfinished_run_gives_its_last_checkpoint(self, run: Path, tmp_path: Path, terminal: Terminal):
        unfinished = tmp_path / "half"
        shutil.copytree(run, unfinished, ignore=shutil.ignore_patterns("policy", "checkpoint-000003"))
        assert terminal("export", unfinished, tmp_path / "out")[0] == 0
        assert "# half\n" in (tmp_path / "out" / "README.md").read_text()
        start, kept = (load_policy(folder).fingerprint() for folder in (run.parent / "start", tmp_path / "out"))
        assert start != kept
        shutil.rmtree(unfinished / "checkpoints")
        said = terminal.error("export", unfinished, tmp_path / "other")
        assert "has neither a policy nor a checkpoint yet" in said

    @pytest.mark.parametrize("name", ["out", "out.gguf"])
    def test_a_damaged_policy_is_refused(self, run: Path, tmp_path: Path, terminal: Terminal, name: str):
        shutil.copytree(run / "policy", tmp_path / "policy")
        file = tmp_path / "policy" / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 64
        file.write_bytes(data)
        said = terminal.error("export", tmp_path / "policy", tmp_path / name)
        assert "is damaged: model.safetensors is missing or not as it was written" in said
        assert [path.name for path in tmp_path.iterdir()] == ["policy"]

    def test_results_are_those_of_the_policy_that_was_examined(self, run: Path, tmp_path: Path, terminal: Terminal):
        """As `mem1 real` examines the best one, from the folder around it."""
        whole = tmp_path / "whole"
        shutil.copytree(run, whole / "train", ignore=shutil.ignore_patterns("evaluation"))
        shutil.copytree(run / "evaluation", whole / "evaluation")
        shutil.copytree(run.parent / "start", whole / "train" / "best")
        given = {"best": whole, "policy": whole / "train" / "policy", "last": whole / "train", "own": run}
        for name, source in given.items():
            assert terminal("export", source, tmp_path / name)[0] == 0
        cards = {name: (tmp_path / name / "README.md").read_text() for name in given}
        assert {name for name, card in cards.items() if "## Results" in card} == {"best", "last", "own"}
        found = {name: load_policy(tmp_path / name).fingerprint() for name in given}
        best, policy = (load_policy(run.parent / name).fingerprint() for name in ("start", "mine/policy"))
        assert found == {"best": best, "policy": policy, "last": best, "own": policy}
        shutil.copytree(run / "evaluation", whole / "train" / "evaluation")  # mem1 train examined it itself
        assert terminal("export", whole / "train", tmp_path / "alone")[0] == 0
        assert load_policy(tmp_path / "alone").fingerprint() == policy
        shutil.copytree(whole / "train", whole / "mine", ignore=shutil.ignore_patterns("evaluation"))
        assert terminal("export", whole / "mine", tmp_path / "beside")[0] == 0  # a run beside somebody's evaluation
        assert "## Results" not in (tmp_path / "beside" / "README.md").read_text()

    def test_the_commands_of_a_card_can_be_pasted_in_its_folder(self, run: Path, tmp_path: Path, terminal: Terminal):
        assert terminal("export", run, tmp_path / "anywhere")[0] == 0
        card = (tmp_path / "anywhere" / "README.md").read_text()
        assert "In this folder:" in card and "\nmem1 eval --model .\n" in card and "`protocol.json` says" in card
        (tmp_path / "bare").mkdir()
        for file in (run / "policy").iterdir():
            if file.name not in (SAVED, "manifest.json"):
                shutil.copy(file, tmp_path / "bare")
        assert terminal("export", tmp_path / "bare", tmp_path / "other")[0] == 0
        assert "protocol.json" not in (tmp_path / "other" / "README.md").read_text()

    def test_the_folder_that_one_is_in_is_not_replaced_and_has_a_name(
        self, run: Path, tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        assert "is the folder that you are in, which cannot be replaced" in terminal.error("export", run, ".")
        assert "is the folder that you are in" in terminal.error("export", run / "checkpoints/checkpoint-000003", ".")
        assert terminal("export", run.parent / "start", "copied")[0] == 0
        monkeypatch.chdir(tmp_path / "copied")
        assert terminal("export", ".", tmp_path / "again")[0] == 0
        assert "\n# copied\n" in (tmp_path / "again" / "README.md").read_text()

    def test_an_evaluation_in_the_folder_of_a_run_leaves_what_the_run_has_recorded(
        self, run: Path, tmp_path: Path, terminal: Terminal
    ):
        """Whatever the evaluated folder is called."""
        mine = tmp_path / "mine"
        shutil.copytree(run, mine)
        before = json.loads((mine / "resolved.json").read_text())
        for name in ("model", "policy"):
            shutil.copytree(run / "policy", tmp_path / name)
            asked = ("--model", tmp_path / name, "--out", mine, "--objectives", "1", "--limit", "1")
            assert terminal("eval", mine / "config.toml", *asked)[0] == 0
        after = json.loads((mine / "resolved.json").read_text())
        assert list(after.pop("evaluations")) == ["model", "policy"] and after == before
        assert terminal("export", mine, tmp_path / "out")[0] == 0 and terminal("report", mine)[0] == 0

    def test_a_curve_may_hold_what_is_no_number(self, run: Path, tmp_path: Path, terminal: Terminal):
        shutil.copytree(run, tmp_path / "run")
        (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "reward": "0.5"}\n')
        assert terminal("export", tmp_path / "run", tmp_path / "out")[0] == 0
        assert "0.5" in (tmp_path / "out" / "README.md").read_text()

    def test_a_changed_card_is_no_damage(self, run: Path, tmp_path: Path, terminal: Terminal):
        assert terminal("export", run, tmp_path / "out")[0] == 0
        (tmp_path / "out" / "README.md").write_text("mine")
        load_policy(tmp_path / "out")

    def test_a_full_disk_leaves_nothing_behind(self, run: Path, tmp_path: Path, terminal: Terminal, monkeypatch):
        def full(source: Path, target: Path, **_: Any) -> None:
            target.mkdir()
            (target / "config.json").write_text("{}")
            raise shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'"), ("c", "d", "[Errno 28] ...")])

        monkeypatch.setattr("mem1.training.runs.export.shutil.copytree", full)
        assert "no space left on the disk while writing" in terminal.error("export", run / "policy", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    def test_what_is_no_policy_and_what_is_in_the_way_is_said(self, run: Path, tmp_path: Path, terminal: Terminal):
        assert "neither a run nor a checkpoint nor a policy" in terminal.error("export", tmp_path, tmp_path / "out")
        assert "exists and is not empty; give another folder" in terminal.error("export", run, run)
        (tmp_path / "x.gguf").write_bytes(b"mine")
        assert "exists; give another file" in terminal.error("export", run, tmp_path / "x.gguf")
        said = terminal.error("export", run, tmp_path / "out", "--gguf-type", "f32")
        assert "--gguf-type: is for GGUF files" in said
        assert not (tmp_path / "out").exists()


class TestCards:
    def test_a_card_has_origin_licence_command_results_and_curve(self, run: Path, tmp_path: Path, terminal: Terminal):
        assert terminal("export", run, tmp_path / "out")[0] == 0
        card = (tmp_path / "out" / "README.md").read_text()
        assert head(card) == {
            "library_name": "transformers",
            "pipeline_tag": "text-generation",
            "license": "mit",
            "tags": ["mem1", "agent", "memory"],
        }
        lines = card.splitlines()
        assert "# mine" in lines and "| started from | start |" in lines
        assert any(line.startswith("| command | mem1 train recipe.toml --out") for line in lines)
        assert any(line.startswith("| trained | 2 | 2 |") for line in lines)  # policy, N, tasks
        curve = lines[lines.index("## Training") :]
        assert curve[2].startswith("| step | reward | exact match |") and curve[4].startswith("| 3 |")
        assert str(run.parent) not in card  # no folder of this machine

    def test_the_licence_is_that_of_the_first_model_of_several_runs(
        self, run: Path, tmp_path: Path, terminal: Terminal
    ):
        second = tmp_path / "second"
        shutil.copytree(run, second)
        config = (second / "config.toml").read_text()
        (second / "config.toml").write_text(config.replace(str(run.parent / "start"), str(run / "policy")))
        assert terminal("export", second / "policy", tmp_path / "out")[0] == 0
        card = (tmp_path / "out" / "README.md").read_text()
        assert head(card)["license"] == "mit" and "| started from | start |" in card

    def test_a_start_that_is_not_seen_from_here_is_no_model_of_a_stranger(
        self, run: Path, tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        """A relative folder of two parts looks like an id; only ids have their commit in resolved.json."""
        moved = tmp_path / "project" / "runs" / "moved"
        shutil.copytree(run, moved)
        config = (moved / "config.toml").read_text()
        (moved / "config.toml").write_text(config.replace(str(run.parent / "start"), "base/start"))
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        monkeypatch.setattr("mem1.hub.HubName.folder", None)  # nothing is asked
        for name, licence in (("gone", None), ("there", "mit")):
            if name == "there":
                shutil.copytree(run.parent / "start", tmp_path / "project" / "base" / "start")
            assert terminal("export", moved, tmp_path / name)[0] == 0
            card = (tmp_path / name / "README.md").read_text()
            assert "base_model" not in head(card) and head(card).get("license") == licence
            assert "| started from | start |" in card

    def test_an_earlier_checkpoint_has_the_curve_up_to_it(self, run: Path, tmp_path: Path, terminal: Terminal):
        shutil.copytree(run, tmp_path / "run")
        rows = [{"step": step, "reward": 0.5} for step in (1, 2, 3, 4)]
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert terminal("export", tmp_path / "run" / "checkpoints" / "checkpoint-000002", tmp_path / "out")[0] == 0
        card = (tmp_path / "out" / "README.md").read_text()
        assert "| checkpoint | after step 2 |" in card and "| 2 | 0.5 |" in card and "| 3 | 0.5 |" not in card

    def test_a_policy_without_a_run_has_a_card_of_its_own(self, run: Path, tmp_path: Path, terminal: Terminal):
        assert terminal("export", run.parent / "start", tmp_path / "out")[0] == 0
        card = (tmp_path / "out" / "README.md").read_text()
        assert head(card)["license"] == "mit" and "# start" in card and "## Results" not in card
        assert terminal("export", "shipped", tmp_path / "ours")[0] == 0
        assert head((tmp_path / "ours" / "README.md").read_text())["license"] == "apache-2.0"


class TestGguf:
    @pytest.mark.parametrize("source", ["policy", "checkpoints/checkpoint-000003"])
    def test_the_file_has_the_policy_and_its_licence(
        self, run: Path, source: str, tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        gguf = pytest.importorskip("gguf")
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
        out = tmp_path / "made" / "mine.gguf"
        assert terminal("export", run / source, out, "--gguf-type", "f32")[0] == 0
        assert os.listdir(out.parent) == ["mine.gguf"]
        was, found = weights(run / "policy"), weights(policy_folder(out))
        assert was.keys() == found.keys() and all(bool((was[name] == found[name]).all()) for name in was)
        codecs = Codec.load(run / "policy"), Codec.load(policy_folder(out))
        assert all(codecs[0].encode(text) == codecs[1].encode(text) for text in TEXTS)
        assert gguf.GGUFReader(out).get_field("general.license").contents() == "mit"

    def test_words_are_no_tokens_of_llama_cpp(self, tmp_path: Path, terminal: Terminal):
        pytest.importorskip("gguf")
        said = terminal.error("export", "shipped", tmp_path / "x.gguf")
        assert "llama.cpp does not know this tokenizer (WordLevel)" in said and not (tmp_path / "x.gguf").exists()


@pytest.mark.filterwarnings("ignore:Use 'content=")  # how huggingface_hub uploads
class TestPushed:
    def test_a_policy_comes_back_from_the_hub_as_it_was(
        self, run: Path, a_hub: Hub, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        a_hub.tokens.add("hf_mine")
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        code, out, _ = terminal("push", run, "me/mine", "--json")
        assert code == 0 and json.loads(out) == {"repository": f"{a_hub.url}/me/mine"}
        files = a_hub.files("me/mine")
        assert files["model.safetensors"] == (run / "policy" / "model.safetensors").read_bytes()
        assert "# me/mine" in files["README.md"].decode() and a_hub.repositories["me/mine"].private
        assert load_policy("me/mine").fingerprint() == load_policy(run / "policy").fingerprint()
        assert (policy_folder("me/mine") / SAVED).read_bytes() == (run / "policy" / SAVED).read_bytes()

        monkeypatch.delenv("HF_TOKEN")
        assert "cannot push to" in (said := terminal.error("push", run, "me/other")) and "HF_TOKEN" in said

    def test_public_is_said(self, run: Path, a_hub: Hub, terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
        a_hub.tokens.add("hf_mine")
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert terminal("push", run, "me/open", "--public")[0] == 0
        assert not a_hub.repositories["me/open"].private
        before = a_hub.files("me/open")
        assert "is public: push there with --public" in terminal.error("push", run, "me/open")
        assert a_hub.files("me/open") == before
        assert terminal("push", run, "me/open", "--public")[0] == 0
        assert terminal("push", run, "me/closed")[0] == 0
        assert "is private: push without --public" in terminal.error("push", run, "me/closed", "--public")
        assert a_hub.repositories["me/closed"].private

    def test_what_a_policy_before_has_left_goes_and_other_files_stay(
        self, run: Path, a_hub: Hub, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        a_hub.tokens.add("hf_mine")
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        old = ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "chat_template.json", "vocab.json")
        old += ("additional_chat_templates/tool_use.jinja", "spiece.model", "adapter_model.bin")
        notes = ("notes.md", "model_notes.safetensors.md", "tokenizer_notes.md", "chat_template_study.ipynb")
        deeper = ("data/config.json", "models/v1/model.safetensors", "tokenizer/vocab.json")
        others = dict.fromkeys((*notes, *deeper, "mine-q8.gguf"), b"mine")
        a_hub.put("me/again", {**dict.fromkeys(old, b"{}"), "config.json": b"{}", **others}, private=True)
        assert terminal("push", run, "me/again")[0] == 0
        found = a_hub.files("me/again")
        assert {name: found.get(name) for name in others} == others and found.keys().isdisjoint(old)
        assert load_policy("me/again").fingerprint() == load_policy(run / "policy").fingerprint()

    def test_a_hub_that_does_not_answer_and_a_name_that_is_none(
        self, run: Path, a_hub: Hub, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        assert "cannot push to" in terminal.error("push", run, "not a/name")
        assert "'mine' names no repository; write it as owner/name" in terminal.error("push", run, "mine")
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert "cannot push to http://127.0.0.1:9/me/mine" in terminal.error("push", run, "me/mine")
