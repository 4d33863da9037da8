"""Checkpoints: exact resume, tied weights, and what is left after a kill, a full disk or damage."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from builders import save_checkpoint
from file_limits import files_of_at_most
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mem1.durable import MANIFEST, seal
from mem1.errors import UserError
from mem1.training.runs.checkpoint import FORMAT, KIND, latest_checkpoint, load_checkpoint, read_state

FINGERPRINT = "0" * 64
RATES = (0.02, 3e-3)


def tiny(seed: int, *, tied: bool = True, width: int = 16) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=20,
            hidden_size=width,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
        )
    )


def optimizers_of(model: Qwen2ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon on the matrices of the layers, AdamW in two groups on the rest."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
    embeddings = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" not in n]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    assert matrices and embeddings and vectors
    adamw = torch.optim.AdamW(
        [{"params": embeddings, "eps": 1e-6}, {"params": vectors}], lr=RATES[1], betas=(0.9, 0.95)
    )
    return [torch.optim.Muon(matrices, lr=RATES[0]), adamw]


def train(model: Qwen2ForCausalLM, optimizers: list[torch.optim.Optimizer], steps: range) -> list[float]:
    """Losses; the data of a step depend on its number only."""
    losses = []
    for step in steps:
        ids = torch.randint(0, 20, (4, 12), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        for optimizer, rate in zip(optimizers, RATES, strict=True):
            for group in optimizer.param_groups:  # a schedule is a function of the step
                group["lr"] = rate * 0.97**step
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def save(folder: Path, step: int, **options) -> Path:
    model = tiny(step)
    return save_checkpoint(folder, step, model, optimizers_of(model), fingerprint=FINGERPRINT, **options)


def trained_checkpoint(folder: Path, step: int) -> Path:
    """With optimizer states larger than the model's file."""
    model = tiny(step)
    optimizers = optimizers_of(model)
    train(model, optimizers, range(1))
    return save_checkpoint(folder, step, model, optimizers, fingerprint=FINGERPRINT)


def load(path: Path, *, fingerprint: str = FINGERPRINT):
    model = tiny(99)
    load_checkpoint(path, model, optimizers_of(model), fingerprint=fingerprint)
    return read_state(path)


@pytest.mark.parametrize("tied", [True, False])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path: Path, tied: bool) -> None:
    unbroken = tiny(0, tied=tied)
    losses = train(unbroken, optimizers_of(unbroken), range(10))

    first = tiny(0, tied=tied)
    optimizers = optimizers_of(first)
    assert train(first, optimizers, range(5)) == losses[:5]
    save_checkpoint(tmp_path, 5, first, optimizers, fingerprint=FINGERPRINT)

    second = tiny(1, tied=tied)
    optimizers = optimizers_of(second)
    path = latest_checkpoint(tmp_path)
    assert path is not None
    load_checkpoint(path, second, optimizers, fingerprint=FINGERPRINT)
    assert read_state(path)["step"] == 5
    assert train(second, optimizers, range(5, 10)) == losses[5:]
    assert len(set(losses)) == 10, "the model has learnt nothing, so nothing was compared"
    for name, weight in unbroken.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    model = tiny(99)
    load_checkpoint(path, model, optimizers_of(model), fingerprint=FINGERPRINT)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert torch.equal(model.lm_head.weight, tiny(1).lm_head.weight)
    assert b"lm_head" not in (path / "model" / "model.safetensors").read_bytes()


def test_the_model_inside_is_a_transformers_folder(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 40)
    assert path.name == "checkpoint-000040"
    loaded = AutoModelForCausalLM.from_pretrained(path / "model")
    assert isinstance(loaded, Qwen2ForCausalLM)
    expected = tiny(40).state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded.state_dict().items())
    assert loaded.dtype == torch.float32


def test_saving_changes_neither_model_nor_config(tmp_path: Path) -> None:
    model = tiny(0)
    before = model.config.to_dict()
    save_checkpoint(tmp_path, 1, model, [], fingerprint=FINGERPRINT)
    assert model.config.to_dict() == before


def test_extra_comes_back(tmp_path: Path) -> None:
    extra = {"best": 0.1 + 0.2, "seen": [1, 2], "name": "ü"}
    assert load(save(tmp_path, 3, extra=extra))["extra"] == extra
    assert load(save(tmp_path, 4))["extra"] == {}


def test_nothing_is_pickled(tmp_path: Path) -> None:
    names = [p.name for p in save(tmp_path, 1).rglob("*") if p.is_file()]
    assert len(names) >= 5
    assert all(name.endswith((".json", ".safetensors")) for name in names)


def test_an_optimizer_that_has_not_stepped_yet_comes_back_as_it_was(tmp_path: Path) -> None:
    model = tiny(0)
    optimizers = optimizers_of(model)
    path = save_checkpoint(tmp_path, 1, model, optimizers, fingerprint=FINGERPRINT)
    assert not any(optimizer.state for optimizer in optimizers)
    losses = train(model, optimizers, range(3))
    again = tiny(1)
    fresh = optimizers_of(again)
    train(again, fresh, range(7, 8))
    load_checkpoint(path, again, fresh, fingerprint=FINGERPRINT)
    assert train(again, fresh, range(3)) == losses


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30, 1_000_000):
        save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000030", "checkpoint-1000000"]
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.name == "checkpoint-1000000"


def test_without_checkpoints_there_is_no_latest_one(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nothing") is None


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 10, extra={"try": 1})
    assert load(save(tmp_path, 10, extra={"try": 2}))["extra"] == {"try": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000010"]


def test_leftovers_of_a_kill_are_never_loaded_and_the_next_save_removes_them(tmp_path: Path) -> None:
    good = save(tmp_path, 10)
    (tmp_path / ".tmp-checkpoint-000020" / "model").mkdir(parents=True)  # killed while writing
    (tmp_path / "checkpoint-000030").mkdir()  # not ours: no manifest
    assert latest_checkpoint(tmp_path) == good
    save(tmp_path, 40)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["checkpoint-000010", "checkpoint-000030", "checkpoint-000040"]


def test_the_latest_checkpoint_is_that_of_the_highest_step_and_not_of_the_last_name(tmp_path: Path) -> None:
    save(tmp_path, 1_000_000)
    save(tmp_path, 999_999)
    latest = latest_checkpoint(tmp_path)
    assert latest is not None and latest.name == "checkpoint-1000000"


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path, 10, extra={"try": 1}).rename(tmp_path / ".checkpoint-000010.old-0123abcd")
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert load(latest)["extra"] == {"try": 1}
    save(tmp_path, 20)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000010", "checkpoint-000020"]


def test_a_checkpoint_set_aside_is_swept_only_once_its_successor_is_there(tmp_path: Path) -> None:
    save(tmp_path, 10, extra={"try": 1}).rename(tmp_path / ".checkpoint-000010.old-0123abcd")
    save(tmp_path, 5)  # puts it back
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000005", "checkpoint-000010"]
    replaced = save(tmp_path / "elsewhere", 10, extra={"try": 2})
    replaced.rename(tmp_path / ".checkpoint-000010.old-0123abcd")
    latest = latest_checkpoint(tmp_path)
    assert latest is not None and load(latest)["extra"] == {"try": 1}
    (tmp_path / "elsewhere").rmdir()
    save(tmp_path, 20)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000010", "checkpoint-000020"]


def test_the_weights_of_other_modules_come_back(tmp_path: Path) -> None:
    saved, loaded = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    path = save(tmp_path, 10, modules={"critic": saved})
    model = tiny(99)
    load_checkpoint(path, model, optimizers_of(model), fingerprint=FINGERPRINT, modules={"critic": loaded})
    assert torch.equal(loaded.weight, saved.weight) and torch.equal(loaded.bias, saved.bias)


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizers.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damage_is_found_before_anything_is_loaded(tmp_path: Path, name: str, damage: str) -> None:
    path = save(tmp_path, 10)
    data = bytearray((path / name).read_bytes())
    data[-2] ^= 1
    if damage == "gone":
        (path / name).unlink()
    else:
        (path / name).write_bytes(data if damage == "flipped" else data[:-2])
    with pytest.raises(UserError, match=f"checkpoint-000010 is damaged: {name} .* continue from the checkpoint before"):
        load(path)


def test_a_checkpoint_with_a_file_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    (save(tmp_path, 10) / "model" / "notes.md").write_text("the best one")
    (tmp_path / ".old-notes").mkdir()  # no checkpoint, although it begins like one that stepped aside
    (tmp_path / ".old-notes" / "a.txt").write_text("mine")
    (tmp_path / "notes").mkdir()
    (tmp_path / ".tmp-checkpoint-list").write_text("mine")
    for step in (20, 30, 40):
        save(tmp_path, step)
    assert (tmp_path / "checkpoint-000010" / "model" / "notes.md").read_text() == "the best one"
    assert (tmp_path / ".old-notes" / "a.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("checkpoint")) == [
        "checkpoint-000010",
        "checkpoint-000030",
        "checkpoint-000040",
    ]
    assert (tmp_path / ".tmp-checkpoint-list").read_text() == "mine"


def resealed(path: Path, name: str, content: bytes) -> None:
    """Put another file into a checkpoint, and a manifest that fits."""
    (path / name).write_bytes(content)
    (path / MANIFEST).unlink()
    seal(path, kind=KIND, format=FORMAT)


@pytest.mark.parametrize(
    "state", [b"", b"[]", b"[" * 100_000, b"{}", b'{"step": "7"}', b'{"step": 1e999}', b"\xff", b'{"step": {}}']
)
def test_a_hand_made_state_is_a_user_error(tmp_path: Path, state: bytes) -> None:
    path = save(tmp_path, 10)
    resealed(path, "state.json", state)
    with pytest.raises(UserError, match="is no checkpoint as mem1 writes them"):
        load(path)


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizers.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 100, (2).to_bytes(8, "little") + b"[]"])
def test_hand_made_tensors_are_a_user_error(tmp_path: Path, name: str, content: bytes) -> None:
    path = save(tmp_path, 10)
    resealed(path, name, content)
    with pytest.raises(UserError):
        load(path)


def test_optimizer_states_that_fit_nothing_are_a_user_error(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    state = json.loads((path / "state.json").read_text())
    for optimizers in (7, [], [["Muon", 3]], state["optimizers"][::-1], [["AdamW", []], ["Muon", []]]):
        resealed(path, "state.json", json.dumps({**state, "optimizers": optimizers}).encode())
        with pytest.raises(UserError):
            load(path)
    other = trained_checkpoint(tmp_path, 20)
    states = load_file(other / "optimizers.safetensors")
    renamed = {name.replace("norm", "nowhere"): tensor for name, tensor in states.items()}
    resealed(other, "optimizers.safetensors", save_tensors(renamed))
    with pytest.raises(UserError, match="is no checkpoint as mem1 writes them"):
        load(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 1, "crc32": {"state.json": 5}}',
        '{"kind": "checkpoint", "format": 3, "facts": {}, "files": {"../secret": [1, 5]}}',
        '{"kind": "checkpoint", "format": 3, "facts": {}, "files": {"state.json": 5}}',
        '{"kind": "bm25", "format": 2, "facts": {}, "files": {}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_manifest_is_a_user_error(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, 10)
    (path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"is not a checkpoint of this mem1, or its manifest\.json is damaged"):
        load(path)


def test_a_later_format_is_a_user_error(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 4}))
    with pytest.raises(UserError, match="has format 4; this mem1 reads format 3"):
        load(path)


def test_another_configuration_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"another configuration \(fingerprint 000000000000, now 111111111111\)"):
        load(save(tmp_path, 10), fingerprint="1" * 64)


def test_a_model_of_another_shape_is_a_user_error_and_stays_as_it_was(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    wide = tiny(99, width=32)
    with pytest.raises(
        UserError, match=r"does not fit this run's model: lm_head|does not fit this run's model: model\."
    ):
        load_checkpoint(path, wide, optimizers_of(wide), fingerprint=FINGERPRINT)
    assert torch.equal(wide.lm_head.weight, tiny(99, width=32).lm_head.weight)


def test_other_optimizers_are_a_user_error(tmp_path: Path) -> None:
    path, model = save(tmp_path, 10), tiny(99)
    muon, adamw = optimizers_of(model)
    with pytest.raises(UserError, match=r"holds the optimizers Muon of 7 .*, AdamW of .*, this run has AdamW of"):
        load_checkpoint(path, model, [adamw], fingerprint=FINGERPRINT)
    flat = torch.optim.AdamW(model.parameters())
    with pytest.raises(UserError, match="holds the optimizers"):
        load_checkpoint(path, model, [muon, flat], fingerprint=FINGERPRINT)


def save_forever(folder: Path, first: int, done: mmap.mmap) -> None:
    """Each step's weights are filled with its number, so that a mixture of two checkpoints would show."""
    model = tiny(0)
    for step in itertools.count(first):
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(step)
        for _ in range(2):  # the second save replaces the first
            save_checkpoint(folder, step, model, optimizers_of(model), fingerprint=FINGERPRINT)
            done[:] = step.to_bytes(8, "big")


def kill_while_saving(folder: Path, first: int, seconds: float) -> int:
    """Fork a process that saves in a loop, kill it; the last step whose save had returned (0: none)."""
    done = mmap.mmap(-1, 8)  # shared with the child
    child = os.fork()
    if child == 0:
        try:
            save_forever(folder, first, done)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process ended by itself: saving failed"
    return int.from_bytes(done[:], "big")


def test_after_a_kill_at_any_moment_the_latest_checkpoint_is_whole(tmp_path: Path) -> None:
    draw = random.Random(0)
    model = tiny(99)
    started = time.perf_counter()
    save_checkpoint(tmp_path, 0, model, optimizers_of(model), fingerprint=FINGERPRINT)
    longest = max(0.1, 6 * (time.perf_counter() - started))  # a few saves
    step = kills = 0
    while kills < 10 or step < 3:
        assert kills < 40, "hardly anything was saved, so hardly anything was tested"
        saved = max(step, kill_while_saving(tmp_path, step + 1, draw.uniform(0.0, longest)))
        kills += 1
        longest *= 1.0 if saved > step else 1.5  # a machine that has become busy
        latest = latest_checkpoint(tmp_path)
        assert latest is not None
        load_checkpoint(latest, model, optimizers_of(model), fingerprint=FINGERPRINT)
        step = read_state(latest)["step"]
        # the kill may have come after the rename and before the save returned
        assert step in (saved, saved + 1)
        assert step == 0 or all(bool((weight == step).all()) for weight in model.parameters())


@pytest.mark.parametrize("fails", ["model/config.json", "model/model.safetensors", "optimizers.safetensors"])
def test_a_full_disk_keeps_the_checkpoints_before_and_leaves_no_rubbish(tmp_path: Path, fails: str) -> None:
    good = trained_checkpoint(tmp_path, 10)
    size = (good / fails).stat().st_size
    with files_of_at_most(size - 1), pytest.raises(UserError) as caught:
        trained_checkpoint(tmp_path, 20)
    assert "no space left on the disk while writing" in str(caught.value)
    assert "checkpoint-000020 (File too large); the checkpoints before it are intact" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000010"]
    assert load(good)["step"] == 10
