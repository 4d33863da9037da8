"""The run of the recipe's verl.md: its commands as they stand, on two nodes of a Ray cluster on this machine.

A tiny model stands in for Qwen2.5-7B, and `mem1 serve-policy` for verl's vLLM servers; `verl_cpu.py` says what else
verl lacks on a CPU. Trainer, workers, job, checkpoint and merge are verl's and Ray's.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("verl", reason="needs mem1-agents[verl] in an environment of its own (verl.md)")

import torch
from builders import CHAT_TEMPLATE
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tokenizers import AddedToken, Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from worlds import CODEC, SMALL

from mem1.configuration import load_toml
from mem1.engines.chat_template import ChatTemplate
from mem1.extras.verl.settings import check_one_step, check_trainer, read_row
from mem1.memory import memory_policy
from mem1.parquet import read_rows
from mem1.policy.policy import load_policy
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe

pytestmark = pytest.mark.verl

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "qwen2.5-7b-multihop"
PAGE = (RECIPE / "verl.md").read_text(encoding="utf-8")
STEPS = 2
SMALL_RUN = (
    *("trainer.n_gpus_per_node=1", f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={STEPS}"),
    *(f"trainer.test_freq={STEPS}", "trainer.logger=[console,file]"),
    *("data.train_batch_size=2", "data.max_prompt_length=1008", "data.max_response_length=16"),
    *("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=12"),
    *("actor_rollout_ref.actor.optim.lr=1e-2", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"),
    # kernels that need a GPU
    *(
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=false",
    ),
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    # each is a process that imports verl
    *("actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=1"),
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
)
"""What is small in the rehearsal."""
TOML = """
memory = "constant"
protocol = "framed"

[model]
path = "models/Qwen2.5-7B"

[tasks]
kind = "atlas"
prompt = "plain"
entities = 60
worlds = 2
questions_per_world = 120
reward = "verl_client:even"

[budget]
context = 1024
completion_per_objective = 0
completion_extra = 16
"""


def of_the_section(title: str) -> list[str]:
    """The commands of a section of the page, each on one line, without comments."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```", section, flags=re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := re.sub(r"\s+", " ", line.split(" #")[0]).strip())]


def of_the_table() -> dict[int, dict[str, str]]:
    """Number of GPUs -> the keys of the page's table with their values."""
    rows = [
        [cell.strip(" `") for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", PAGE, flags=re.M)
    ]
    head = next(row for row in rows if row[1:] == ["8", "16", "32", "64"])
    keys = [row for row in rows if re.fullmatch(r"(trainer|data|actor_rollout_ref)\.[\w.]+", row[0])]
    assert len(keys) > 5
    return {int(gpus): {row[0]: row[column] for row in keys} for column, gpus in enumerate(head[1:], start=1)}


@pytest.mark.parametrize("gpus", [8, 16, 32, 64])
def test_the_settings_of_the_pages_table_make_one_optimiser_step_that_the_gpus_share_evenly(gpus: int):
    settings = of_the_table()[gpus]
    with initialize_config_dir(str(RECIPE), version_base=None):
        config = compose("verl", overrides=[f"{key}={value}" for key, value in settings.items()])
    validate_config(config, need_reference_policy(config), need_critic(config))
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    recipe = load_toml(RECIPE / "grpo.toml", Recipe)
    check_trainer(plain, recipe.budget)
    assert gpus == config.trainer.nnodes * config.trainer.n_gpus_per_node
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    (any_task,) = SMALL.source("train", PAPER).tasks(objectives=2, count=1, seed=0)
    task = replace(any_task, turn_limit=recipe.tasks.turn_limit.turns(2))  # type: ignore[attr-defined]
    check_one_step(plain, task, memory_policy(recipe.memory))
    assert actor.ppo_mini_batch_size == task.turn_limit * config.data.train_batch_size
    assert (actor.ppo_mini_batch_size * rollout.n) % gpus == 0
    assert config.data.train_batch_size * rollout.n == 16 * gpus / rollout.tensor_model_parallel_size


def test_the_table_is_that_of_the_shipped_file_where_it_has_as_many_gpus():
    with initialize_config_dir(str(RECIPE), version_base=None):
        config = compose("verl")
    for key, value in of_the_table()[8].items():
        assert str(OmegaConf.select(config, key)) == value, key


def write_model(folder: Path) -> None:
    """A random model whose tokenizer has a chat template."""
    known = Tokenizer.from_str(CODEC.tokenizer.to_str())
    known.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("<|im_start|>", "<|im_end|>")])
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=known.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=known, chat_template=CHAT_TEMPLATE, eos_token="<|im_end|>", pad_token="<|im_end|>"
    ).save_pretrained(folder)


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


@contextmanager
def node(command: str, environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """A node of the cluster; `ray start` stays in front of it, so that it ends with us."""
    with log.open("w") as out:
        started = subprocess.Popen(
            ["bash", "-c", f"exec {command} --block"],
            cwd=log.parent,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + 300
        while "Ray runtime started" not in log.read_text():
            assert started.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield
    finally:
        started.terminate()
        started.wait(120)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_go_from_tasks_to_an_evaluation_of_the_merged_policy(tmp_path: Path):
    write_model(tmp_path / "models" / "Qwen2.5-7B")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "recipe.toml").write_text(TOML)
    port, dashboard = free_port(), free_port()
    environment = {
        **os.environ,
        "HOME": str(tmp_path),  # of Ray's token
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT / "src")]),
        "OMP_NUM_THREADS": "1",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu,verl_servers",
        "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    small = {
        "FIRST": "127.0.0.1",
        "6379": port,
        "8265": dashboard,
        "count 8000": "count 4",
        "count 500": "count 2",
        "limit 500": "limit 2",
        "--objectives 2": "--objectives 1",
        "--no-wait": "",
        "global_step_500": f"global_step_{STEPS}",
    }
    machine = "--num-gpus 1 --num-cpus 16 --disable-usage-stats"

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    commands = of_the_section("A run")
    for old, new in small.items():
        commands = [command.replace(old, new) for command in commands]
    nodes = [command for command in commands if command.startswith("ray start")]
    before = commands[: commands.index(nodes[0])]
    after = commands[commands.index(nodes[-1]) + 1 :]
    assert (len(nodes), len(after)) == (2, 6)
    for command in before:
        if command.startswith("export "):
            environment |= dict([command.removeprefix("export ").split("=")])
        else:
            run(command)
    with (
        # sockets have short names only
        TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        node(f"{nodes[0]} {machine} --dashboard-port {dashboard} --temp-dir {folder}", environment, tmp_path / "1.log"),
        node(f"{nodes[1]} {machine}", environment, tmp_path / "2.log"),
    ):
        environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        shown = {}
        for command in after:
            submitted = "main_ppo" in command
            shown[command] = run(" ".join([command, *map(json.dumps, SMALL_RUN)]) if submitted else command)
    assert "succeeded" in next(text for command, text in shown.items() if command.startswith("ray job status"))

    logged = {line["step"]: line["data"] for line in map(json.loads, (tmp_path / "metrics.jsonl").open())}
    assert sorted(logged) == [0, 1, 2]
    for step in (1, 2):
        # old weights on the servers would be far off: a step changes each weight by up to 0.01
        assert logged[step]["rollout_corr/rollout_is_max"] < 1.06
        assert logged[step]["actor/grad_norm"] > 0
        assert logged[step]["critic/score/max"] > logged[step]["critic/score/min"]
    assert {"val-core/mem1-n1/acc/mean@1", "val-aux/mem1-n1/reward/mean@1"} <= logged[2].keys()

    first, merged = (load_policy(tmp_path / name) for name in ("models/Qwen2.5-7B", "runs/verl/policy"))
    rows = read_rows(tmp_path / "multi" / "train.parquet")
    prompts = [first.codec.encode_untrusted(read_row(row["extra_info"])[0].prompt, PAPER) for _, row in rows]
    template = ChatTemplate.load(tmp_path / "models" / "Qwen2.5-7B", first.codec)
    shortest = min(len(template.around(prompt)) for prompt in prompts)
    assert min(logged[step]["prompt_length/min"] for step in (1, 2)) == shortest > min(map(len, prompts))
    weights = merged.model.state_dict()
    moved = max(float((weights[name] - w).abs().max()) for name, w in first.model.state_dict().items())
    assert 0.005 < moved < 0.05
    assert merged.codec.fingerprint() == first.codec.fingerprint()
    assert ChatTemplate.load(tmp_path / "runs" / "verl" / "policy", merged.codec) == template
    assert len(list((tmp_path / "results" / "verl").rglob("*.jsonl"))) == 1
