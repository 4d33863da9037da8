"""The tokenizer of a run, proven: it must turn the recorded tokens into the recorded text.

A page shows tokens as text, so a tokenizer that only nearly fits would show what no model has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mem1.errors import UserError
from mem1.records import Trajectory

if TYPE_CHECKING:
    from mem1.engines.codec import Codec


def run_codec(
    run: Path, training: Path | None, trajectories: Sequence[Trajectory], *, tokenizer: Path | None = None
) -> Codec:
    """The first tokenizer that fits: `tokenizer` where it is given, else that of the run's policy or of the policy
    that it started from, else of a shipped one.

    Raises UserError where none turns every recorded completion into its recorded text.
    """
    from mem1.engines.codec import Codec
    from mem1.training.weights.policy import policy_folder

    tried: list[str] = []
    for folder in [policy_folder(tokenizer)] if tokenizer is not None else _folders(training):
        codec = Codec.load(folder)
        if all(codec.decode(turn.completion_ids) == turn.text for t in trajectories for turn in t.turns if turn.text):
            return codec
        tried.append(str(folder))
    raise UserError(
        f"{run}: its recorded tokens are not those of {' or '.join(tried)}; give the folder of the tokenizer that it "
        "was made with: --tokenizer FOLDER"
    )


def _folders(training: Path | None) -> Iterator[Path]:
    from mem1.configuration import read_toml
    from mem1.training.weights.policy import SHIPPED, SHIPPED_SHOP, policy_folder

    if training is None:
        yield policy_folder(SHIPPED)
        yield policy_folder(SHIPPED_SHOP)
        return
    if (training / "policy" / "tokenizer.json").is_file():
        yield training / "policy"
        return
    model = read_toml(training / "config.toml").get("model", {})
    if "new" in model:
        raise UserError(
            f"{training / 'policy'} does not exist yet; the run has a tokenizer of its own, so finish it first"
        )
    yield policy_folder(model.get("path", SHIPPED))
