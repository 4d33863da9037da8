"""Models by their Hugging Face id, fetched by huggingface_hub's own client from a hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from file_limits import files_of_at_most
from hubs import Hub, hub, new_process
from hubs import a_hub as a_hub
from terminals import Terminal
from terminals import terminal as terminal

from mem1.errors import UserError
from mem1.hub import hub_name
from mem1.model_folder import asset
from mem1.policy.folders import policy_folder

TINY = {"config.json": b'{"model_type": "qwen2"}', "tokenizer.json": b"{}", "README.md": b"---\nlicense: mit\n---\n"}
WEIGHTS = {"model.safetensors": b"w" * 1000, "consolidated.safetensors": b"w" * 1000, "pytorch_model.bin": b"p"}


def small(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class TestNames:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", "", "")),
            ("Qwen/Qwen3-0.6B@refs/pr/4", ("Qwen/Qwen3-0.6B", "refs/pr/4", "")),
            ("me/x-GGUF:q4/x.Q4_1.gguf", ("me/x-GGUF", "", "q4/x.Q4_1.gguf")),
            ("me/x-GGUF@v1:x.gguf", ("me/x-GGUF", "v1", "x.gguf")),
        ],
    )
    def test_an_id_has_a_repository_perhaps_a_revision_and_perhaps_a_gguf_file(
        self, name: str, parts: tuple[str, str, str]
    ):
        found = hub_name(name)
        assert found is not None and (found.repo, found.revision, found.file) == parts
        assert str(found) == name

    @pytest.mark.parametrize(
        "name",
        [
            "qwen",
            "models/qwen",
            "runs/a",
            "./org/x",
            "../org/x",
            "/org/x",
            "org/x/y",
            "a.gguf",
            "org/x:weights.bin",
            "",
        ],
    )
    def test_a_path_is_none(self, name: str):
        assert hub_name(name) is None

    def test_nor_is_what_begins_with_a_folder_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        assert hub_name("trained/x") is not None
        (tmp_path / "trained").mkdir()
        assert hub_name("trained/x") is None


class TestFetching:
    def test_the_small_files_come_first_and_the_weights_where_the_model_is_loaded(self, a_hub: Hub):
        commit = a_hub.put("org/tiny", {**TINY, **WEIGHTS})
        folder = policy_folder("org/tiny")
        assert folder.name == commit and small(folder) == ["README.md", "config.json", "tokenizer.json"]
        assert a_hub.fetched(".safetensors") == []
        assert policy_folder("org/tiny", weights=True) == folder
        assert small(folder) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
        assert (folder / "model.safetensors").read_bytes() == b"w" * 1000

    def test_an_id_is_looked_up_once_in_a_process(self, a_hub: Hub):
        a_hub.put("org/tiny", {**TINY, **WEIGHTS})
        first = [policy_folder("org/tiny"), policy_folder("org/tiny", weights=True)]
        asked = len(a_hub.asked)
        a_hub.put("org/tiny", {**TINY, **WEIGHTS, "config.json": b"{}"})
        assert [policy_folder("org/tiny"), policy_folder("org/tiny", weights=True)] == first
        assert len(a_hub.asked) == asked
        looked_up = [path for _, path in a_hub.asked if "/revision/" in path]
        assert looked_up == ["/api/models/org/tiny/revision/main"]

    def test_a_later_process_finds_the_newer_commit_and_fetches_only_what_changed(
        self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch
    ):
        a_hub.put("org/tiny", {**TINY, **WEIGHTS})
        policy_folder("org/tiny", weights=True)
        newer = a_hub.put("org/tiny", {**TINY, **WEIGHTS, "config.json": b'{"model_type": "qwen3"}'})
        a_hub.asked.clear()
        new_process(monkeypatch)
        folder = policy_folder("org/tiny", weights=True)
        assert folder.name == newer and (folder / "config.json").read_bytes() == b'{"model_type": "qwen3"}'
        assert a_hub.fetched("/config.json") and not a_hub.fetched("model.safetensors")

    def test_a_revision_is_a_branch_a_tag_or_a_commit(self, a_hub: Hub):
        old = a_hub.put("org/tiny", TINY)
        branch = a_hub.put("org/tiny", {**TINY, "config.json": b"{}"}, branch="refs/pr/4")
        new = a_hub.put("org/tiny", {**TINY, "vocab.txt": b"a"})
        names = ("org/tiny", "org/tiny@refs/pr/4", f"org/tiny@{old}")
        assert [policy_folder(name).name for name in names] == [new, branch, old]

    def test_a_pinned_id_keeps_its_commit_although_the_hub_has_moved_on(self, a_hub: Hub):
        old = a_hub.put("org/tiny", {**TINY, **WEIGHTS})
        a_hub.put("org/tiny", {**TINY, **WEIGHTS, "config.json": b"{}"})
        name = hub_name("org/tiny")
        assert name is not None
        name.pin(old)
        assert policy_folder("org/tiny", weights=True).name == old

    @pytest.mark.parametrize("weights", [False, True])
    def test_without_a_network_the_cache_answers(self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch, weights: bool):
        commit = a_hub.put("org/tiny", {**TINY, **WEIGHTS})
        policy_folder("org/tiny", weights=True)
        new_process(monkeypatch)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        asked = len(a_hub.asked)
        assert policy_folder("org/tiny", weights=weights).name == commit
        assert len(a_hub.asked) == asked

    def test_a_token_opens_what_is_gated(self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch):
        commit = a_hub.put("org/closed", {**TINY, **WEIGHTS}, gated=True)
        a_hub.tokens.add("hf_mine")
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert policy_folder("org/closed", weights=True).name == commit


class TestErrors:
    def said(self, name: str, *, weights: bool = True) -> str:
        with pytest.raises(UserError) as error:
            policy_folder(name, weights=weights)
        assert "\n" not in str(error.value)
        return str(error.value)

    def test_a_model_that_is_not_there(self, a_hub: Hub):
        said = self.said("org/nothing")
        assert said.startswith("org/nothing is no folder here") and "no such model or hides it" in said

    def test_one_that_is_gated(self, a_hub: Hub):
        a_hub.put("org/closed", TINY, gated=True)
        said = self.said("org/closed")
        assert f"accept its terms at {a_hub.url}/org/closed" in said and "HF_TOKEN" in said

    def test_a_token_that_the_hub_refuses(self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch):
        a_hub.put("org/tiny", TINY)
        monkeypatch.setenv("HF_TOKEN", "hf_old")
        said = self.said("org/tiny")
        assert "the hub answers 401 (Invalid credentials in Authorization header)" in said and "log in with" in said

    def test_a_revision_that_is_not_there(self, a_hub: Hub):
        a_hub.put("org/tiny", TINY)
        assert "org/tiny has no revision 'v9'; give a branch, tag or commit" in self.said("org/tiny@v9")

    def test_weights_that_are_pickled(self, a_hub: Hub):
        a_hub.put("org/old", {**TINY, "pytorch_model.bin": b"p"})
        said = self.said("org/old")
        assert "org/old has no weights in *.safetensors, only pytorch_model.bin" in said
        assert a_hub.fetched(".bin") == []

    def test_a_repository_of_gguf_files_alone_names_one(self, a_hub: Hub):
        a_hub.put("org/quants", {"README.md": b"", "x.Q8_0.gguf": b"GGUF"})
        assert "give one of its GGUF files, as in org/quants:x.Q8_0.gguf" in self.said("org/quants")

    def test_a_gguf_file_that_is_not_there(self, a_hub: Hub):
        a_hub.put("org/quants", {"README.md": b"", "x.Q8_0.gguf": b"GGUF"})
        assert "org/quants has no file y.gguf" in self.said("org/quants:y.gguf")

    def test_offline(self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        said = self.said("org/tiny")
        assert "HF_HUB_OFFLINE is set" in said and "hf download org/tiny" in said
        assert a_hub.asked == []

    def test_offline_with_the_small_files_alone(self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch):
        a_hub.put("org/tiny", {**TINY, **WEIGHTS})
        policy_folder("org/tiny")
        new_process(monkeypatch)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert "not in the cache of Hugging Face, or not all of it" in self.said("org/tiny")

    def test_a_hub_that_does_not_answer(self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        assert "http://127.0.0.1:9 does not answer" in self.said("org/tiny")

    def test_a_plan_goes_on_without_it_for_the_small_files_are_then_missing(
        self, a_hub: Hub, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        assert policy_folder("org/tiny") == Path("org/tiny")

    def test_a_full_disk(self, a_hub: Hub):
        a_hub.put("org/tiny", {**TINY, "model.safetensors": b"w" * 300_000})
        policy_folder("org/tiny")
        with files_of_at_most(100_000):
            said = self.said("org/tiny")
        assert "no space left on the disk while writing org/tiny" in said and "move HF_HOME" in said


class TestRuns:
    """[sft] of one step on a copy of the shipped policy, which the hub has as org/start."""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(
            'model.path = "org/start"\ntasks.kind = "atlas"\ncheckpoint_every = 1\nwriters = []\n'
            "[sft]\nsteps = 2\ntasks = 8\ntokens = 512\npack_tokens = 512\nobjectives = [1]\n"
        )
        return path

    def test_the_commit_is_recorded_and_a_resumed_run_keeps_it(
        self, a_hub: Hub, recipe: Path, tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        began = a_hub.put("org/start", asset("atlas-warm-start"))
        run = tmp_path / "run"
        train = ("train", recipe, "--out", run, "--no-evaluate")
        assert terminal(*train)[0] == 0
        assert json.loads((run / "resolved.json").read_text())["model"] == {"name": "org/start", "commit": began}
        finished = (run / "policy" / "model.safetensors").read_bytes()
        metrics = (run / "metrics.jsonl").read_text()

        # the hub moves on to weights that could not even be loaded; the run lost its last step
        a_hub.put("org/start", {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b""})
        new_process(monkeypatch)
        shutil.rmtree(run / "policy")
        shutil.rmtree(run / "checkpoints" / "checkpoint-000002")
        assert terminal(*train, "--resume")[0] == 0
        assert (run / "policy" / "model.safetensors").read_bytes() == finished
        assert (run / "metrics.jsonl").read_text() == metrics
        assert json.loads((run / "resolved.json").read_text())["model"] == {"name": "org/start", "commit": began}

        new_process(monkeypatch)
        assert terminal("export", run / "checkpoints" / "checkpoint-000002", tmp_path / "out")[0] == 0
        assert (tmp_path / "out" / "model.safetensors").read_bytes() == finished

    def test_a_dry_run_fetches_no_weights(self, a_hub: Hub, recipe: Path, tmp_path: Path, terminal: Terminal):
        a_hub.put("org/start", asset("atlas-warm-start"))
        code, said, _ = terminal("train", recipe, "--dry-run", "--out", tmp_path / "run", "--json")
        checks = {check["name"]: check for check in json.loads(said)["checks"]}
        assert code == 0 and checks["model"]["detail"] == "org/start: can be packed exactly"
        assert a_hub.fetched(".safetensors") == []

    def test_a_dry_run_names_weights_that_are_pickled(
        self, a_hub: Hub, recipe: Path, tmp_path: Path, terminal: Terminal
    ):
        start = asset("atlas-warm-start")
        a_hub.put(
            "org/start", {n: (start / n).read_bytes() for n in ("config.json", "tokenizer.json")} | {"a.bin": b"p"}
        )
        code, said, _ = terminal("train", recipe, "--dry-run", "--out", tmp_path / "run", "--json")
        checks = {check["name"]: check for check in json.loads(said)["checks"]}
        assert code == 1 and "no weights in *.safetensors, only a.bin" in checks["model"]["detail"]

    @pytest.mark.slow
    def test_a_plan_without_a_network_knows_the_shapes_of_its_table(
        self, a_hub: Hub, recipe: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        code, said, _ = terminal(
            "plan", recipe, "model.path=Qwen/Qwen2.5-0.5B-Instruct", "sft.pack_tokens=256", "--json"
        )
        assert code == 0 and json.loads(said)["parameters"] == 494_032_768
        error = terminal.error("plan", recipe, "model.path=org/unknown")
        assert "org/unknown is not in the cache of Hugging Face" in error


@pytest.mark.slow
def test_a_command_asks_the_hub_that_the_environment_names(tmp_path: Path):
    """HF_ENDPOINT, HF_HOME and HF_TOKEN as the client reads them, in a process of its own."""
    with hub() as running:
        running.tokens.add("hf_mine")
        running.put("org/start", asset("atlas-warm-start"), private=True)
        environment = {**os.environ, "HF_ENDPOINT": running.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_mine"}
        environment.pop("HF_HUB_OFFLINE")
        command = [sys.executable, "-m", "mem1", "eval", "--model", "org/start", "--objectives", "1"]
        done = subprocess.run(
            [*command, "--limit", "1", "--json"], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"][0]["tasks"] == 1
        assert "Fetching" not in done.stderr  # no bars where there is no terminal
        (kept,) = (tmp_path / "hf" / "hub").glob("models--org--start/snapshots/*")
        assert kept.name == running.repositories["org/start"].branches["main"]
