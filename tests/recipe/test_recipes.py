"""Every recipe in the repository can be read, and says what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mem1
from mem1.api import find_recipe
from mem1.cli.options import QUICKSTART
from mem1.cli.train import MEMORY, WITHOUT_NOTES
from mem1.configuration import load_toml, to_toml
from mem1.errors import UserError
from mem1.policy.folders import SHIPPED_MEMORIES, SHIPPED_NOTES
from mem1.policy.policy import load_policy
from mem1.policy.protocol import resolve
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.recipe.recipe import Recipe

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(FOLDER.rglob("*.toml"))
NAMES = {path: path.relative_to(FOLDER).with_suffix("").as_posix() for path in RECIPES}


def test_the_documentation_has_one_line_for_each_recipe():
    page = (FOLDER.parent / "docs" / "training.md").read_text(encoding="utf-8")
    table = page.split("\n## Recipes\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\S+)` \|", table, flags=re.MULTILINE)
    assert len(listed) == 33 == len(NAMES)
    assert sorted(listed) == sorted(NAMES.values())


@pytest.mark.parametrize("path", RECIPES, ids=NAMES.get)
def test_a_recipe_is_valid_and_survives_being_written_out(path: Path, tmp_path: Path):
    config = load_toml(path, Recipe)
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert load_toml(tmp_path / "config.toml", Recipe) == config


@pytest.mark.parametrize("path", RECIPES, ids=NAMES.get)
def test_a_recipe_begins_with_a_comment_that_says_what_it_is_for(path: Path):
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", RECIPES, ids=NAMES.get)
def test_a_recipe_is_found_by_its_name_and_by_its_path(path: Path):
    assert find_recipe(NAMES[path]).read_bytes() == find_recipe(str(path)).read_bytes() == path.read_bytes()


def test_an_unknown_recipe_lists_the_shipped_ones():
    with pytest.raises(UserError, match=r"no recipe 'atlas-quik'.*atlas-quick"):
        find_recipe("atlas-quik")


def test_a_training_of_constant_memory_is_reinforcement_on_two_objectives_only():
    config = load_toml(find_recipe("atlas-quick"), Recipe)
    assert (config.recall, config.sft, config.model.path, config.model.new) == (None, None, None, None)
    assert config.rl is not None
    assert {phase.objectives for phase in config.rl.curriculum} == {(2,)}
    assert config.evaluation.objectives == (1, 2, 4, 8, 16)


@pytest.mark.parametrize("changes", [(), ("memory=constant", *WITHOUT_NOTES)], ids=["notes", "constant"])
def test_quickstart_trains_by_reinforcement_on_two_objectives_only(changes: tuple[str, ...]):
    config = load_toml(find_recipe(QUICKSTART), Recipe, list(changes))
    assert config.memory == ("constant" if changes else MEMORY)
    assert (config.recall, config.sft, config.model.new) == (None, None, None)
    start = SHIPPED_MEMORIES if changes else SHIPPED_NOTES
    assert config.model.path == start
    assert config.rl is not None
    assert {phase.objectives for phase in config.rl.curriculum} == {(2,)}
    assert config.evaluation.objectives == (1, 2, 4, 8, 16, 32)
    tags = resolve(config).tags
    assert load_policy(start).codec.tokenizer.get_vocab() == atlas_tokenizer(tags, 128).get_vocab()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["rl.algorithm={name='channels', channels=[{name='objectives'}]}", "rl.kl.where=reward"], 'add "outcome"'),
        (["rl.algorithm={name='rejection', threshold=0.5}", "rl.kl.where=reward"], "takes neither"),
        (["rl.algorithm={name='ppo', critic_warmup=9}", "rl.curriculum=[{steps=9}]"], "in all 9 steps"),
        (["rl.kl={coefficient=0, target=0.1}"], "stays 0 whatever the target"),
    ],
)
def test_what_would_do_nothing_is_refused(keys: list[str], message: str):
    with pytest.raises(UserError, match=message):
        mem1.load_recipe("atlas-quick", *keys)
    mem1.load_recipe("atlas-quick", "rl.algorithm={name='channels', channels=[{name='outcome'}]}", "rl.kl.where=reward")
