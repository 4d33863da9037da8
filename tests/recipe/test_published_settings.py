"""recipes/qwen2.5-7b-multihop/mem1-published.toml against the settings of MEM1's released code, key by key.

The release's values were read at github.com/MIT-MI/MEM1, commit 6f22061: Mem1/train/train_ppo.sh, which overrides
Mem1/train/verl/trainer/config/ppo_trainer.yaml, the code that reads both, and Mem1/train/rollout.
"""

from __future__ import annotations

import re
from pathlib import Path

from mem1.configuration import load_toml
from mem1.configuration.model import flatten, plain
from mem1.envs.search import MultihopTasks
from mem1.recipe.recipe import Recipe

FOLDER = Path(__file__).parents[2] / "recipes" / "qwen2.5-7b-multihop"
RECIPE = load_toml(FOLDER / "mem1-published.toml", Recipe)
README = (FOLDER / "README.md").read_text(encoding="utf-8")

RELEASE = {
    "protocol.base": "published",  # words, white space and parser of llm_agent/generation_think.py
    "memory": "constant",
    "protocol.kind": "framed",  # utils/dataset/rl_dataset.py: the tokenizer of Qwen2.5-7B has one
    "tasks.top_k": 3,  # retriever.topk
    "tasks.style": "released",
    "tasks.reward": "sum",  # utils/reward_score/qa_multiple.py
    "tasks.prompt.separator": "; ",
    "tasks.prompt.numbered": False,
    "budget.completion_per_objective": 0,
    "budget.completion_extra": 1000,  # data.max_response_length
    "budget.context": 4096 + 1000,  # data.max_prompt_length, and a completion
    "budget.force_answer": False,
    "rl.tasks_per_step": 128,  # data.train_batch_size
    "rl.group_size": 1,  # rollout.n_agent
    "rl.epochs": 1,  # actor.ppo_epochs
    "rl.minibatches": 128 // 64,  # actor.ppo_mini_batch_size
    "rl.temperature": 1.0,
    "rl.learning_rate": 1e-6,
    "rl.warmup": int(0.05 * 500),  # actor.optim.lr_warmup_steps_ratio of trainer.total_training_steps
    "rl.decay": 0.0,  # get_constant_schedule_with_warmup
    "rl.beta2": 0.999,  # torch's AdamW, of which fsdp_workers.py changes only
    "rl.weight_decay": 0.01,
    "rl.max_grad_norm": 1.0,
    "rl.entropy": 0.001,  # actor.entropy_coeff
    "rl.old_logprobs_from": "trainer",  # compute_log_prob before the update
    "rl.max_staleness": 0,
    "rl.algorithm.name": "ppo",  # algorithm.adv_estimator: gae
    # verl's reward is on the last token
    "rl.algorithm.channels": [{"name": "outcome", "weight": 1.0, "tokens": "all", "scale": True}],
    "rl.algorithm.clip_low": 0.2,
    "rl.algorithm.clip_high": 0.2,
    "rl.algorithm.gamma": 1.0,
    "rl.algorithm.lam": 1.0,
    "rl.algorithm.whiten": True,
    "rl.algorithm.critic": "separate",
    "rl.algorithm.critic_learning_rate": 1e-5,
    "rl.algorithm.critic_warmup": 0,  # trainer.critic_warmup
    "rl.algorithm.critic_rate_warmup": int(0.015 * 500),
    "rl.algorithm.value_clip": 0.5,  # critic.cliprange_value
    "rl.kl.coefficient": 0.001,
    "rl.kl.where": "reward",  # actor.use_kl_loss: False
    "rl.kl.estimator": "k1",  # algorithm.kl_penalty: kl
    "rl.kl.negative": False,  # ray_trainer.py: torch.clamp(kld, min=0)
    "evaluation.temperature": 0.0,  # _validate: do_sample False
    "checkpoint_every": 20,  # trainer.save_freq
}
OURS_ALONE = {
    # of the tags of protocol.base, or without effect on protocol = framed
    *("protocol.add", "protocol.thoughts", "protocol.template"),
    # without effect on what is learnt: names of files, memory, and parts of mem1 that the release has not
    *(
        "model.path",
        "model.device",
        "model.dtype",
        "model.training_dtype",
        "model.attention",
        "rl.pack_tokens",
        "rl.packed",
        "rl.kl.horizon",
    ),
    *("model.activation_checkpointing", "model.compile"),
    *("tasks.kind", "tasks.questions", "tasks.train_questions", "tasks.prompt.file", "tasks.decompose"),
    *("tasks.format", "tasks.scorer", "tasks.aliases", "tasks.evaluation_share", "tasks.without"),
    *("tasks.question_marks", "rl.algorithm.value_grad_scale"),
    # shown by a test below
    *("tasks.composition", "tasks.passage_words", "rl.curriculum"),
}
LEARNING = ("protocol.", "memory", "model.", "tasks.", "budget.", "rl.", "lora.", "sft.", "recall.")
"""Beginnings of the keys that change what is learnt; all others say where a run computes and what it reports."""
ELSEWHERE = ("tasks.retriever.", "tasks.turn_limit.")
"""Where the search engine is, and the turn limit, which a test below compares."""
REMAINING = (
    *("top_p", "stop", "Re-encoding", "Empty action", "Cutting", "Mask", "GAE", "Loss average", "Warm-up"),
    *("Weight decay", "Order of tasks", "Reward", "Critic's start", "Validation", "GPUs", "Hostile text"),
)
"""First words of the README's list of what still differs."""


def test_every_setting_of_the_recipe_has_the_releases_value():
    ours = flatten(plain(RECIPE))
    assert {key: ours.get(key) for key in RELEASE} == RELEASE


def test_no_setting_of_the_recipe_is_outside_the_comparison():
    ours = flatten(plain(RECIPE))
    known = RELEASE.keys() | OURS_ALONE
    learning = [key for key in ours if key.startswith(LEARNING) and not key.startswith(ELSEWHERE)]
    assert len(learning) > 50 and [key for key in learning if key not in known] == []
    assert RECIPE.rl is not None and RECIPE.rl.importance is None and RECIPE.lora is None and RECIPE.sft is None


def test_turns_tasks_and_steps_are_the_releases():
    assert isinstance(RECIPE.tasks, MultihopTasks) and RECIPE.rl is not None
    turns = {n: RECIPE.tasks.turn_limit.turns(n) for n in (1, 2, 4, 6, 8, 16)}
    assert turns == {1: 6, 2: 6, 4: 6, 6: 20, 8: 20, 16: 20}
    assert [(phase.steps, phase.objectives) for phase in RECIPE.rl.curriculum] == [(500, (2,))]
    assert (RECIPE.tasks.composition, RECIPE.tasks.question_marks) == ("consecutive", True)
    assert RECIPE.tasks.passage_words == 100, "a passage of the Wikipedia dump"
    tags = RECIPE.protocol.tags(None, ())
    assert (tags.state, tags.action_tags, tags.result) == (
        "think",
        {"search": "search", "answer": "answer"},
        "information",
    )


def test_the_readme_lists_what_still_differs_with_its_reason():
    section = README.split("\n## What still differs from the release\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, flags=re.MULTILINE)
    assert [name for name, *_ in rows[1:]] == list(REMAINING)
    assert all(reason.strip() for *_, reason in rows)
