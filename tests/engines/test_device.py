"""Every command and recipe asks for the GPU where there is one, and says with what it computed."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from policies import SHAPE
from typer.testing import CliRunner, Result

from mem1.cli.main import app
from mem1.configuration import load_toml
from mem1.engines.codec import Codec
from mem1.engines.device import CPU, Machine, choose, sampling_dtype, with_float64
from mem1.errors import UserError
from mem1.packing.attention import choose_attention
from mem1.policy.policy import Policy, load_policy
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.model import Lora, ModelConfig
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.run_folder import RunFolder
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks, joined
from mem1.training.train import NOT_FINGERPRINTED

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))
TWO = Machine(gpus=("Alpha", "Beta"), pretended=True)
BARE, APPLE = Machine(), Machine(mps=True, pretended=True)
SAID = "device: cuda:0 (Alpha), float32"


class TestTheChoice:
    @pytest.mark.parametrize(
        ("wanted", "machine", "training", "name"),
        [
            ("auto", TWO, False, "cuda:0 (Alpha)"),
            ("auto", TWO, True, "cuda:0 (Alpha)"),
            ("cuda", TWO, True, "cuda:0 (Alpha)"),
            ("cuda:1", TWO, True, "cuda:1 (Beta)"),
            ("cpu", TWO, True, "cpu"),
            ("auto", BARE, True, "cpu"),
            ("auto", APPLE, False, "mps"),
            ("auto", APPLE, True, "cpu"),
            ("mps", APPLE, False, "mps"),
        ],
    )
    def test_auto_takes_a_gpu_and_apples_only_to_sample(self, wanted, machine, training, name):
        assert str(choose(wanted, machine, training=training)) == name

    @pytest.mark.parametrize(
        ("wanted", "machine", "training", "message"),
        [
            ("cuda", BARE, False, "there is no device cuda: this machine has cpu"),
            ("cuda:2", TWO, False, r"no device cuda:2: this machine has cuda:0 \(Alpha\), cuda:1 \(Beta\), cpu"),
            ("mps", BARE, False, "there is no device mps: this machine has cpu"),
            ("mps", APPLE, True, "no float64; use cpu for training and mem1 verify"),
        ],
    )
    def test_a_device_that_is_not_there_is_refused_with_those_that_are(self, wanted, machine, training, message):
        with pytest.raises(UserError, match=message):
            choose(wanted, machine, training=training)

    def test_under_torchrun_each_process_has_the_gpu_of_its_rank(self):
        assert [choose("auto", TWO, training=True, local_rank=i).name for i in (0, 1)] == ["cuda:0", "cuda:1"]
        assert choose("auto", BARE, training=True, local_rank=1).name == "cpu"
        with pytest.raises(UserError, match="local rank 2 has no GPU of its own"):
            choose("auto", TWO, training=True, local_rank=2)
        with pytest.raises(UserError, match="each process uses the GPU of its own rank"):
            choose("cuda:1", TWO, training=True, local_rank=0)

    def test_a_gpu_without_pretence_is_where_tensors_go(self):
        assert choose("cuda:1", replace(TWO, pretended=False)).at == torch.device("cuda", 1)
        assert choose("auto", replace(APPLE, pretended=False)).at == torch.device("mps")

    @pytest.mark.parametrize(
        ("wanted", "machine", "stored", "dtype"),
        [
            ("auto", TWO, torch.bfloat16, torch.bfloat16),
            ("auto", TWO, torch.float32, torch.float32),
            ("auto", TWO, torch.float16, torch.float32),
            ("auto", TWO, None, torch.float32),
            ("auto", BARE, torch.bfloat16, torch.float32),
            ("auto", APPLE, torch.bfloat16, torch.float32),
            ("float32", TWO, torch.bfloat16, torch.float32),
            ("bfloat16", BARE, torch.float32, torch.bfloat16),
        ],
    )
    def test_auto_never_rounds_a_weight(self, wanted, machine, stored, dtype):
        assert sampling_dtype(wanted, choose("auto", machine), stored) is dtype

    def test_tokens_are_drawn_in_float64_where_there_is_some(self):
        assert with_float64(torch.device("mps")) == CPU
        assert with_float64(torch.device("cuda", 1)) == torch.device("cuda", 1)

    def test_attention_is_flex_on_cuda_and_by_blocks_elsewhere(self):
        cuda = torch.device("cuda")
        assert [choose_attention("auto", d) for d in (cuda, CPU)] == ["flex", "blocks"]
        assert [choose_attention(w, cuda) for w in ("flex", "blocks")] == ["flex", "blocks"]
        assert choose_attention("flex", CPU, gradients=False) == "flex"
        with pytest.raises(UserError, match=r"no backward pass on cpu: set model\.attention to auto or blocks"):
            choose_attention("flex", CPU)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_asks_for_the_gpu_and_trains_there_in_bfloat16_unless_its_model_is_small(path: Path):
    config = load_toml(path, Recipe)
    with joined(device=config.model.device, machine=TWO) as ranks:
        computed = Placement.of(config, ranks).computed
    wide = config.model.new is None and not (config.model.path or "shipped").startswith("shipped")
    served = config.rollout.engine == "servers"
    where = " on servers" if served else ""
    apart = ", training in bfloat16" * wide + f", sampling in bfloat16{where}" * (wide or served)
    assert computed.record() == {"device": "cuda:0 (Alpha)", "dtype": f"float32{apart}", "attention": "blocks"}
    assert ranks.device.workers(config.workers) == 1
    on_gpu = Ranks(device=choose(config.model.device, replace(TWO, pretended=False), training=True))
    assert Placement.of(config, on_gpu).attention == "flex"


class TestPrecisionInTraining:
    CONFIG = load_toml(next(path for path in RECIPES if path.stem == "atlas-quick"), Recipe, ["workers=1"])
    HALF = CONFIG.model_copy(update={"model": ModelConfig(dtype="bfloat16")})

    @pytest.mark.parametrize("lora", [None, Lora(rank=2)])
    def test_a_copy_that_samples_may_be_in_bfloat16_and_gets_its_precision_back_to_be_kept(self, lora):
        placement = Placement.of(self.HALF.model_copy(update={"lora": lora}), Ranks())
        assert placement.separate
        assert placement.computed.dtype == "float32, sampling in bfloat16"
        policy = new_model(SHAPE, vocab_size=300, seed=0)
        trained = copy.deepcopy(policy)
        placement.sync_to_sampler(trained, policy)
        assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}
        assert {p.dtype for p in trained.parameters()} == {torch.float32}
        placement.hand_back(trained, policy)
        same = new_model(SHAPE, vocab_size=300, seed=0).state_dict()
        assert all(tensor.equal(same[name]) for name, tensor in policy.state_dict().items())

    def test_servers_choose_their_own(self):
        servers = ServerRollouts(servers=("http://a:1",), weights_folder="w")
        config = self.HALF.model_copy(update={"rollout": servers})
        with pytest.raises(UserError, match=r"set rollout\.publish_dtype, and start the servers with the precision"):
            Placement.of(config, Ranks())


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small policy that knows nothing, its weights stored in bfloat16."""
    folder = tmp_path_factory.mktemp("policy")
    codec = Codec(atlas_tokenizer(PAPER))
    Policy(new_model(SHAPE, vocab_size=codec.vocab_size, seed=0).to(torch.bfloat16), codec).save(folder)  # type: ignore[arg-type]
    return folder


def call(*arguments: object, machine: Machine = TWO) -> Result:
    """The command's result on a pretended machine; an error of the user is raised, as main() prints it."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], obj=machine)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def said(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def trained(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    small = ("rl.tasks_per_step=1", "rl.group_size=2", "rl.warmup=0", "rl.curriculum=[{steps=1,objectives=[1]}]")
    budget = ("budget.context=300", "budget.completion_extra=4", "writers=[]", "tasks.worlds=1")
    evaluation = ("evaluation.tasks=1", "evaluation.objectives=[1]")
    recipe = ("train", "atlas-quick", f"model.path={policy}", *small, *budget, *evaluation)
    return folder, call(*recipe, "--out", folder, "--json")


class TestCommands:
    SMALL = ("tasks.entities=40", "tasks.worlds=1", "tasks.questions_per_world=50", "budget.completion_extra=4")
    EVAL = ("eval", "--limit", "1", "--objectives", "1", *SMALL, "budget.context=60", "--json")

    def test_eval_prints_and_records_its_device(self, policy: Path, tmp_path: Path):
        result = call(*self.EVAL, "--model", policy, "--out", tmp_path, "model.dtype=float32")
        assert SAID in result.stderr
        assert {key: said(result)[key] for key in ("device", "dtype")} == {
            "device": "cuda:0 (Alpha)",
            "dtype": "float32",
        }
        header = json.loads((tmp_path / f"{policy.name}-1.json").read_text())
        assert (header["devices"], header["dtype"], "device" in header) == (["cuda:0 (Alpha)"], "float32", False)
        again = call(*self.EVAL, "--model", policy, "--out", tmp_path, "model.device=cpu", "--limit", "2")
        assert len(said(again)["rows"]) == 1
        header = json.loads((tmp_path / f"{policy.name}-1.json").read_text())
        assert (header["devices"], header["added_at"]) == (["cuda:0 (Alpha)", "cpu"], [1])

    def test_eval_cannot_resume_in_another_precision(self, policy: Path, tmp_path: Path):
        result = call(*self.EVAL, "--model", policy, "--out", tmp_path)
        assert said(result)["dtype"] == "bfloat16", "as its weights are stored"
        with pytest.raises(UserError, match='dtype: "bfloat16" in the folder, "float32" now'):
            call(*self.EVAL, "--model", policy, "--out", tmp_path, "model.device=cpu")

    def test_eval_by_a_recipe_uses_the_recipes_device(self, policy: Path):
        recipe = ("eval", "atlas-quick", "--model", policy, "--limit", "1", "--objectives", "1", "--json")
        assert said(call(*recipe, "budget.context=60", "model.device=cuda:1"))["device"] == "cuda:1 (Beta)"

    def test_run_prints_and_records_its_device(self, policy: Path):
        result = call("run", "--model", policy, *self.SMALL, "budget.context=300", "--json")
        assert "device: cuda:0 (Alpha), bfloat16" in result.stderr
        assert said(result)["device"] == "cuda:0 (Alpha)"

    def test_verify_prints_and_records_its_device_and_attention(self, policy: Path):
        small = (
            "verify",
            "--model",
            policy,
            "--limit",
            "1",
            "--attempts",
            "1",
            *self.SMALL,
            "budget.context=300",
            "--json",
        )
        result = call(*small, "model.attention=flex")
        assert f"{SAID}, attention by flex" in result.stderr
        assert "its log-probs were checked, gradients and steps were not" in " ".join(result.stderr.split())
        printed = said(result)
        assert (printed["device"], printed["attention"], printed["passed"]) == ("cuda:0 (Alpha)", "flex", True)
        checks = {check["name"]: check for check in printed["checks"]}
        assert checks["packed log-probs, float64"]["compared"] == printed["sampled_tokens"] > 0
        assert not [name for name in checks if "gradient" in name or "grpo" in name or "ppo" in name]

    def test_verify_refuses_unavailable_devices_and_attention(self):
        with pytest.raises(UserError, match="no float64"):
            call("verify", "model.device=mps", machine=APPLE)
        with pytest.raises(UserError, match=r"model\.attention .*: input should be 'auto', 'blocks' or 'flex'"):
            call("verify", "model.attention=dense")
        with pytest.raises(UserError, match="--device is auto, cpu, cuda, cuda:N or mps, not 'gpu'"):
            call("quickstart", "--device", "gpu")

    def test_train_prints_and_records_its_device(self, trained: tuple[Path, Result]):
        folder, result = trained
        assert f"{SAID}, attention by blocks" in result.stderr
        assert "2 workers are for a CPU; on cuda:0 one process computes" in result.stderr
        computed = {"device": "cuda:0 (Alpha)", "dtype": "float32", "attention": "blocks"}
        assert json.loads((folder / "resolved.json").read_text())["computed"] == [computed]
        assert {key: said(result)[key] for key in computed} == computed
        header = json.loads((folder / "evaluation" / "trained-1.json").read_text())
        assert (header["devices"], header["dtype"]) == (["cuda:0 (Alpha)"], "float32")

    def test_a_run_can_resume_on_another_device_and_records_it(self, tmp_path: Path):
        here, there = (
            load_toml(RECIPES[0], Recipe, [f"model.device={device}", f"model.attention={attention}"])
            for device, attention in (("cuda:1", "flex"), ("cpu", "blocks"))
        )
        RunFolder.create(tmp_path / "run", here, command=["mem1"], exclude=NOT_FINGERPRINTED)
        for device in ("cuda:1 (Beta)", "cuda:1 (Beta)", "cpu"):
            folder = RunFolder.open(tmp_path / "run", there, exclude=NOT_FINGERPRINTED)
            folder.note_computed({"device": device, "dtype": "float32"})
        known = json.loads((tmp_path / "run" / "resolved.json").read_text())["computed"]
        assert [one["device"] for one in known] == ["cuda:1 (Beta)", "cpu"]

    @pytest.mark.parametrize(
        "command", [("quickstart", "--out", "FILE/run"), ("serve-policy", "shipped", "--weights-folder", "FILE")]
    )
    def test_quickstart_and_serve_policy_print_theirs_before_they_begin(self, command: tuple[str, ...], tmp_path: Path):
        (tmp_path / "file").write_text("no folder can be made here")
        arguments = [word.replace("FILE", str(tmp_path / "file")) for word in command]
        result = CliRunner().invoke(app, arguments, obj=TWO)
        assert isinstance(result.exception, UserError) and SAID in result.stderr

    @pytest.mark.parametrize("command", [("train", "atlas-quick"), ("quickstart",), ("serve-policy", "shipped")])
    def test_the_other_commands_ask_the_machine_too(self, command: tuple[str, ...], tmp_path: Path):
        options = () if command[0] == "serve-policy" else ("--out", tmp_path / "run")
        device = ("model.device=cuda:7",) if command[0] == "train" else ("--device", "cuda:7")
        with pytest.raises(UserError, match=r"no device cuda:7: this machine has cuda:0 \(Alpha\), cuda:1"):
            call(*command, *options, *device)
        assert not list(tmp_path.iterdir()), "nothing was written before"


def test_a_policy_is_loaded_as_its_weights_are_stored_on_cuda_and_in_float32_elsewhere(policy: Path):
    gpu, cpu = choose("auto", TWO), choose("auto", BARE)
    assert load_policy(policy, device=gpu, dtype="auto").model.dtype is torch.bfloat16
    assert load_policy(policy, device=cpu, dtype="auto").model.dtype is torch.float32
    assert load_policy(policy).model.dtype is torch.float32


def test_more_workers_than_cores_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.engines.device.cores", lambda: 4)
    cpu = choose("auto", BARE)
    assert cpu.worker_warnings(4) == () and cpu.worker_warnings(24)[0].startswith("24 workers share 4 cores")
