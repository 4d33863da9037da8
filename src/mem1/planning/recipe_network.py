"""Which network a recipe trains: the one in its model's folder, a new small one, or a known one by its name."""

from __future__ import annotations

from dataclasses import replace

from mem1.planning.known_networks import known
from mem1.planning.networks import Network, read_network
from mem1.protocol import vocabulary
from mem1.training.loop.recipe import TinyModel, TrainConfig
from mem1.training.tiny_model.tokenizers import atlas_tokenizer, shop_tokenizer
from mem1.training.weights.policy import SHIPPED, policy_folder


def recipe_network(config: TrainConfig) -> Network:
    """The network of a recipe's policy.

    Raises UserError where its folder is not there and its name is not known, or it is of another family.
    """
    if config.model.new is not None:
        return _new(config.model.new, config)
    folder = policy_folder(config.model.path or SHIPPED)
    return read_network(folder) if (folder / "config.json").is_file() else known(str(folder))


def _new(new: TinyModel, config: TrainConfig) -> Network:
    """As `training.models.new_model` makes it; its vocabulary is that of its tokenizer."""
    made = Network(
        kind="qwen2",
        hidden=new.hidden_size,
        layers=new.layers,
        heads=new.heads,
        kv_heads=new.heads,
        head_size=new.hidden_size // new.heads,
        feed_forward=new.feed_forward,
        vocabulary=new.vocab_size,
        tied=True,
        biases=True,
        source="model.new of the recipe",
    )
    if new.tokenizer == "bpe":
        return made
    make = atlas_tokenizer if new.tokenizer == "atlas" else shop_tokenizer
    return replace(made, vocabulary=make(vocabulary(config.vocabulary)).get_vocab_size())
