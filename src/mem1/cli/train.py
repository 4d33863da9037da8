"""`mem1 train`: run a recipe, then evaluate its policy. `mem1 quickstart`: evaluate, train, evaluate again."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import (
    OVERRIDES_HELP,
    QUICKSTART,
    DeviceOption,
    Fills,
    JsonOption,
    check_folder,
    chosen_device,
    expanded,
    folder_name,
    machine,
    refuse,
    with_device,
    work_begins,
)
from mem1.cli.progress import say
from mem1.configuration.model import LARGEST_SEED
from mem1.errors import UserError
from mem1.interrupts import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.engines.device import Computed, Machine
    from mem1.evaluation.metrics import Row
    from mem1.policy.policy import Policy
    from mem1.recipe.recipe import Recipe
    from mem1.training.ranks.processes import Ranks


def command(
    invocation: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/<recipe>.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint in the folder.")] = False,
    evaluate: Annotated[bool, typer.Option(help="Evaluate the trained policy at the end.")] = True,
    upload: Annotated[
        str | None, typer.Option(help="Command run on every checkpoint, its path for {}: 'rclone copy {} far:runs'.")
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Only check that a run would work; exit code 1 if something is missing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a policy as a recipe says; on several processes: torchrun --nproc-per-node N -m mem1 train RECIPE."""
    from mem1.api import find_recipe, load_recipe

    if dry:
        refuse(invocation, "upload", because="--dry-run trains nothing; leave it out")
    elif not evaluate:
        refuse(invocation, "as_json", because="prints the evaluation, which --no-evaluate leaves out")
    path = find_recipe(recipe)
    config = load_recipe(path, *expanded(overrides or []))
    if config.engine.kind != "local":
        raise UserError("[engine] is for mem1 eval and run; training uses [rollout]; remove [engine]")
    folder = out or Path("runs") / path.stem
    options = [] if evaluate else ["--no-evaluate"]
    options += [] if upload is None else ["--upload", upload]
    work_begins(lambda: _resume(["mem1", "train", recipe, *(overrides or []), "--out", str(folder), *options], folder))
    from mem1.cli.eval import evaluate_policy, show
    from mem1.cli.progress import TrainingBar, bars, stderr
    from mem1.engines.device import Machine
    from mem1.planning.preflight import check_evaluation
    from mem1.run_folder import pin_model
    from mem1.training.ranks.placement import Placement, joined_for
    from mem1.training.train import train

    if resume:
        pin_model(folder)
    here = machine(invocation) or Machine.here()
    config = _with_sampler(config, folder, here, resume=resume)
    if dry:
        _dry_run(config, folder, as_json=as_json, evaluate=evaluate, resume=resume)
        return
    console = stderr()
    on_saved = None if upload is None else Upload(upload, console.print)
    if evaluate and not config.recall is config.sft is config.rl is None:
        check_evaluation(config)
    config = fitted(config, here)
    with joined_for(config, here) as ranks:
        console.quiet = ranks.rank > 0
        if resume and not (folder / "config.toml").is_file() and ranks.rank == 0:
            # no mistake: torchrun starts a command again as it was
            say(f"--resume: {folder} holds no run (config.toml is missing); a new one is started", "warning")
        console.print(f"Training {path.stem}; everything is written to {folder}", soft_wrap=True)
        computed = Placement.of(config, ranks).computed
        _print_notes(console, config, computed, ranks)
        with bars(console) as progress:
            finished = train(
                config,
                folder,
                command=sys.argv,
                resume=resume,
                on_step=TrainingBar(progress),
                on_saved=on_saved,
                ranks=ranks,
            )
    if ranks.rank > 0:  # rank 0 has the policy and its evaluation
        raise typer.Exit(0 if finished.complete else 130)
    if not finished.complete:
        raise Interrupted(f"{finished.where}, with a checkpoint")
    console.print(f"The trained policy is in {folder / 'policy'}", soft_wrap=True)
    if not evaluate:
        return
    rows = evaluate_policy(config, finished.policy, ranks.device, name="trained", folder=folder / "evaluation")
    (folder / "result.json").write_text(json.dumps({"rows": [row.as_dict() for row in rows]}, indent=2))
    show(rows, as_json=as_json, computed=computed)


def _print_notes(console: Console, config: Recipe, computed: Computed, ranks: Ranks) -> None:
    """What the lines of a training do not say."""
    from mem1.envs.tasks import QuestionTasks
    from mem1.policy.protocol import resolve

    scorer = [f"EM: by the scorer {config.tasks.scorer}"] if isinstance(config.tasks, QuestionTasks) else []
    for note in (str(computed), f"protocol: {resolve(config)}", *scorer, *ranks.device.worker_warnings(config.workers)):
        console.print(note, markup=False, soft_wrap=True)


def _resume(command: Sequence[str], run: Path) -> str:
    """What to do once a command is stopped that trains into the folder `run`."""
    if (run / "config.toml").is_file():
        return f"resume with: {shlex.join([*command, '--resume'])}"
    return f"begin again with: {shlex.join(command)}"


def _with_sampler(config: Recipe, folder: Path, here: Machine, *, resume: bool) -> Recipe:
    """The recipe with what `rollout.engine = "auto"` means here, which is said."""
    from mem1.training.ranks.processes import own_device, world
    from mem1.training.sampling.automatic import decided

    if config.rollout.engine != "auto":
        return config
    rank, ranks = world()
    device = own_device(config.model.device, here)
    config, chosen = decided(config, folder, device=device, processes=ranks, resume=resume)
    if rank == 0:
        say(chosen)
    return config


def fitted(config: Recipe, here: Machine) -> Recipe:
    """The recipe, with activation checkpointing if it fits into the GPU only so.

    Warns if the plan's largest attempts do not fit; raises UserError if the networks alone do not. Before processes are
    joined: a plan joins pretended ones.
    """
    from mem1.engines.device import free_memory
    from mem1.planning.fits import check_fits, recomputing_if_needed
    from mem1.training.ranks.processes import own_device, world

    device, (rank, ranks) = own_device(config.model.device, here), world()
    free = free_memory(device)
    if free is not None:
        given, steps = config, {}
        config = recomputing_if_needed(config, free=free, ranks=ranks, steps=steps)
        if config is not given and rank == 0:
            say(f"layers are computed again in the backward pass: {device} has no room for their activations")
        warning = check_fits(config, free=free, device=str(device), ranks=ranks, steps=steps)
        if warning is not None and rank == 0:
            say(warning, "warning")
    return config


def _dry_run(config: Recipe, folder: Path, *, as_json: bool, evaluate: bool, resume: bool) -> None:
    from mem1.cli.plan import show_dry_run
    from mem1.planning.preflight import dry_run

    done = dry_run(config, out=folder, evaluate=evaluate, resume=resume)
    if as_json:
        print(json.dumps(done.record()))
    else:
        show_dry_run(done)
    if not done.ready:
        raise typer.Exit(1)


class Upload:
    """Runs a command on every checkpoint once it is complete; no shell is involved.

    --upload "rclone copy {} far:runs"      runs   rclone copy runs/a/checkpoints/checkpoint-000040 far:runs

    A command that fails is reported, and training continues. It can ask nothing: its standard input is empty.
    """

    def __init__(self, command: str, tell: Callable[[str], None]) -> None:
        """Raises UserError if it is not a command, or has no place for the path."""
        self.tell = tell
        self.words = self._words(command)

    @staticmethod
    def _words(command: str) -> Sequence[str]:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--upload {command!r}: {error}") from error
        if not any("{}" in word for word in words):
            raise UserError(
                f"--upload {command!r} has no {{}} in place of the checkpoint's path: 'rclone copy {{}} far:'"
            )
        return words

    def __call__(self, checkpoint: Path) -> None:
        words = [word.replace("{}", str(checkpoint)) for word in self.words]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            self.tell(f"{checkpoint.name} was not uploaded: {error}")
            return
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            self.tell(f"{checkpoint.name} was not uploaded (exit code {done.returncode}): {last[0]}")


MEMORY = "notebook(4)"
"""The memory of `QUICKSTART`: `mem1 quickstart` without `--memory`."""
WITHOUT_NOTES = ("model.path=shipped-memories",)
"""What `mem1 quickstart` changes in its recipe for a memory without notes."""


def quickstart(
    invocation: typer.Context,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of tasks, sampling and evaluation."),
        Fills("mem1.recipe.recipe:Recipe.seed"),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. Default: runs/quickstart-seed<SEED>, with the name of another memory in it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the folder.")] = False,
    memory: Annotated[
        str,
        typer.Option(help="Memory: notebook(4), notes, constant (MEM1's own), full, or another memory."),
    ] = MEMORY,
) -> None:
    """Evaluate a shipped policy, train it by reinforcement learning on two objectives, evaluate again."""
    from mem1.api import load_recipe
    from mem1.memory import memory_policy
    from mem1.protocol import NOTE

    named = "quickstart" if memory == MEMORY else f"quickstart-{memory}"
    folder = out or Path("runs") / f"{folder_name(named)}-seed{seed}"
    overrides = [f"seed={seed}", f"evaluation.seed={seed}", f"memory={memory}"]
    overrides += () if NOTE in memory_policy(memory).asks else WITHOUT_NOTES
    config = with_device(load_recipe(QUICKSTART, *overrides), device)
    check_folder(folder, resume=resume)
    again = ["mem1", "quickstart", "--memory", memory, "--seed", str(seed), "--out", str(folder)]
    again += [] if device is None else ["--device", device]
    work_begins(lambda: f"resume with: {shlex.join([*again, *(['--resume'] if folder.exists() else [])])}")
    from mem1.cli.eval import show
    from mem1.cli.progress import stderr
    from mem1.engines.device import Machine
    from mem1.evaluation.report.run_folders import write_run_report
    from mem1.lock import alone_in
    from mem1.training.ranks.placement import Placement
    from mem1.training.ranks.processes import Ranks

    console = stderr()
    console.print(f"mem1 quickstart, seed {seed}, memory {memory}; everything is written to {folder}", soft_wrap=True)
    ranks = Ranks(device=chosen_device(invocation, config.model.device, training=True))
    computed = Placement.of(config, ranks).computed
    _print_notes(console, config, computed, ranks)
    config = fitted(config, machine(invocation) or Machine.here())
    with alone_in(folder):
        rows = _quickstart(config, ranks, folder, resume, console)
        result = {"rows": [row.as_dict() for row in rows]}
        (folder / "result.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
        write_run_report(folder)
        show(rows, as_json=as_json, computed=computed)
    console.print(
        f"Look at {folder / 'report.html'}; the trained policy is in {folder / 'train' / 'policy'}", soft_wrap=True
    )


def _quickstart(config: Recipe, ranks: Ranks, folder: Path, resume: bool, console: Console) -> list[Row]:
    from mem1.cli.eval import evaluate_policy
    from mem1.policy.policy import load_policy

    assert config.model.path is not None, f"{QUICKSTART} names its policy"
    shipped = load_policy(config.model.path, device=ranks.device)
    base = evaluate_policy(config, shipped, ranks.device, name="base", folder=folder / "evaluation")
    trained = train_to_end(config, folder / "train", ranks, console, resume=resume)
    return base + evaluate_policy(config, trained, ranks.device, name="trained", folder=folder / "evaluation")


def train_to_end(recipe: Recipe, folder: Path, ranks: Ranks, console: Console, *, resume: bool) -> Policy:
    """The policy of a run with its progress; raises Interrupted where it is stopped before."""
    from mem1.cli.progress import TrainingBar, bars
    from mem1.training.train import train

    with bars(console) as progress:
        finished = train(recipe, folder, command=sys.argv, resume=resume, on_step=TrainingBar(progress), ranks=ranks)
    if not finished.complete:
        raise Interrupted(f"{finished.where}, with a checkpoint")
    return finished.policy
