"""Memories compared on Atlas: each trained from one start with equal budgets, after an equal search.

    mem1 train compare-atlas/warm-start --no-evaluate --out runs/compare/warm-start
    python benchmarks/compare.py

benchmarks/results/README.md says where the start is that the files in results/compare-atlas were made with.

Two phases, each of many small jobs on one core. A finished job leaves a file in --results and is not done again, so the
command may be stopped at any time and given again, also on another machine, and as many processes as there are cores
may work at it side by side. `run_files.py` packs the files of an experiment that is finished; they count as before:

    search    every policy with each learning rate at the usual turn limit, then the best one with a longer limit; half
              the tokens, one seed, chosen by exact match at N = 2 and 4 on the development worlds (names of the
              training half, worlds that training does not see)
    run       each policy, as its search says, for every seed: trained until it has sampled --tokens tokens and has used
              --minutes of CPU time, and the policy at either moment evaluated, greedily, on worlds of the
              evaluation half; the start likewise, under each policy

Processor time is that of one process on one thread; what else the machine does moves it little. --minutes 0 leaves its
budget out. The figure is drawn by matplotlib: pip install -e '.[benchmarks]'.

The same for questions that depend on one another, with a start that has seen such:

    mem1 train compare-atlas/warm-start tasks.composition=chain tasks.depth=1 --no-evaluate \
        "sft.objectives=[2,2,2,3,3,4,4,5,6,7,8,9,10,11,12,13,14,15,16]" --out runs/compare-chain/warm-start
    python benchmarks/compare.py --set tasks.composition=chain tasks.depth=1 --minutes 0 --tokens 300000 \
        --learning-rates 1.5e-4 3e-4 6e-4 1.2e-3 --objectives 2 4 8 16 --tasks 300 200 100 60 \
        --start runs/compare-chain/warm-start/policy --out runs/compare-chain \
        --results benchmarks/results/compare-atlas-chain

and trained on two and four such questions, with what that search chose: --train-objectives 2 4 besides, --search
benchmarks/results/compare-atlas-chain/search and other folders for --out and --results.

--recipe takes the same to other tasks, with their own tags and what is scored there;
research/experiments.md has the command for the shop.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from answer_stages import answer_stages
from machine import commit, hardware
from run_files import read_run, result_at, run_names
from run_results import (
    SCORES,
    Measured,
    difference_cell,
    markdown,
    mean_cell,
    mean_of,
    mean_over,
    per_solved,
    scores_of,
    solved_objectives,
)
from stages import rl_stage

from mem1.configuration import load_toml
from mem1.durable import write_file
from mem1.engines.device import flushed_denormals
from mem1.evaluation.intervals import seeds_interval
from mem1.evaluation.metrics import em_by_depth, peak_tokens, solved, total_tokens
from mem1.evaluation.runner import evaluate
from mem1.evaluation.tokens import ModelShape, attempt_cost, cached_by_turn, forward_flops, model_shape
from mem1.memory import memory_policy
from mem1.policy.policy import load_policy
from mem1.policy.protocol import resolve
from mem1.prices import PRICE_CLASSES
from mem1.protocol import ANSWER, NOTE, RECALL
from mem1.recipe.recipe import Recipe
from mem1.records import Trajectory, Turn
from mem1.tasks.compose import Split
from mem1.training.train import make_rollout

RECIPE = Path(__file__).parents[1] / "recipes" / "compare-atlas" / "train.toml"
RESULTS = Path(__file__).parent / "results" / "compare-atlas"
POLICIES = (
    "constant",
    "capped(48)",
    "fold(3)",
    "window(3)",
    "summary(160)",
    "external(3)",
    "masked",
    "full",
    "none",
)
TURNS = (3, 5)
"""Turns for each question; the first is the usual limit, which the recipe has."""
DEVELOPMENT = ["tasks.first_world=500", "tasks.worlds=4"]
"""Training has worlds 0 to 7, the warm start 1000 to 1015."""
SEARCH_SEED = 100

Job = tuple[Path, Callable[[], Any]]
"""The file of its result, and what makes it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a search chooses."""

    learning_rate: float
    turns: int

    @property
    def overrides(self) -> list[str]:
        longer = [] if self.turns == TURNS[0] else [f"tasks.turn_limit.per_objective={self.turns}"]
        return [f"rl.learning_rate={self.learning_rate}", *longer]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A trained policy in the making: what its budgets have been used for."""

    folder: Path
    metrics: list[Mapping[str, Any]]
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Compare:
    given: argparse.Namespace

    def config(self, policy: str, seed: int, *overrides: str) -> Recipe:
        noting = NOTE in memory_policy(policy).asks
        start = f"model.path={self.start_of(policy)}"
        without_end = f"rl.curriculum=[{{steps=1000000, objectives={self.given.train_objectives}}}]"  # budgets end it
        common = [start, f"memory={policy}", f"seed={seed}", "workers=1", without_end]
        common += [f"protocol={self.given.protocol_with_notes}"] if noting and self.given.protocol_with_notes else []
        worlds = DEVELOPMENT if self.given.development else []
        return load_toml(self.given.recipe, Recipe, [*common, *self.given.set, *worlds, *overrides])

    def start_of(self, policy: str) -> str:
        """Folder of the policy that trainings under this memory begin with."""
        return self.given.start_with_notes if NOTE in memory_policy(policy).asks else self.given.start

    def done(self, path: Path, job: Callable[[], Any]) -> bool:
        """Whether the job was done here: False where another process is at it or has finished it in the meantime."""
        locks = self.given.out / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / f"{path.parent.name}-{path.stem}").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system if this process dies
            except BlockingIOError:
                return False
            if read_run(path) is not None:
                return False
            result = {"commit": commit(), "hardware": hardware(), "result": job()}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, json.dumps(result).encode())
            return True

    # -- search --------------------------------------------------------------------------------------------------

    def search_jobs(self) -> Iterator[Job]:
        for policy in self.given.policies:
            yield from (self.trial(policy, settings) for settings in self._usual_turns())
        for policy in self.given.policies:
            best = self._best(policy, self._usual_turns())
            if best is not None:
                yield from (self.trial(policy, Settings(learning_rate=best.learning_rate, turns=t)) for t in TURNS[1:])

    def chosen(self, policy: str) -> Settings | None:
        """By the whole search; None while it is not finished. Without a search, the first of the learning rates."""
        if self.given.no_search:
            return self._usual_turns()[0]
        first = self._best(policy, self._usual_turns())
        if first is None:
            return None
        return self._best(policy, [Settings(learning_rate=first.learning_rate, turns=turns) for turns in TURNS])

    def check_settings(self) -> None:
        """Stops where a run was made with other settings than the search has chosen: such runs are no comparison."""
        for policy, seed in product(self.given.policies, self.given.seeds):
            path, _ = self.run_of(policy, seed)
            chosen, found = self.chosen(policy), result_at(path)
            if found is not None and chosen != Settings(learning_rate=found["learning_rate"], turns=found["turns"]):
                sys.exit(f"{path} was not made with what the search chose, {chosen}; move it away to run it again")

    def seeds_of(self, policy: str) -> list[int]:
        """The seeds of which there is a result."""
        return [seed for seed in self.given.seeds if read_run(self.run_of(policy, seed)[0]) is not None]

    def evaluated(
        self, policy: str, budget: str, objectives: int, seeds: Sequence[int] | None = None
    ) -> list[Measured]:
        """One a seed, None: of all that have a result of this size; of the start, which has no seed, one."""
        chosen: Sequence[int | None] = (
            [None] if budget == "start" else self.seeds_of(policy) if seeds is None else seeds
        )
        found = [self._sizes(policy, seed, budget).get(str(objectives)) for seed in chosen]
        return [of_seed for of_seed in found if of_seed is not None]

    def _sizes(self, policy: str, seed: int | None, budget: str) -> dict[str, Measured]:
        """What was measured by number of objectives, with the run and later."""
        run, sizes = self.run_of(policy, seed)[0], self.given.results / "sizes"
        first = result_at(run)
        found: dict[str, Measured] = {} if first is None else dict(first[budget])
        for name in run_names(sizes) if budget != "minutes" else ():
            if name.startswith(f"{run.stem}-N"):
                found |= result_at(sizes / f"{name}.json") or {}
        return found

    def _usual_turns(self) -> list[Settings]:
        return [Settings(learning_rate=rate, turns=TURNS[0]) for rate in self.given.learning_rates]

    def _best(self, policy: str, candidates: Sequence[Settings]) -> Settings | None:
        scores: list[float] = []
        for settings in candidates:
            found = result_at(self.trial(policy, settings)[0])
            if found is None:
                return None
            scores.append(found["development_em"])
        return max(zip(scores, candidates, strict=True), key=lambda pair: pair[0])[1]

    def trial(self, policy: str, settings: Settings) -> Job:
        name = f"{policy}-lr{settings.learning_rate:g}-turns{settings.turns}"

        def run() -> Any:
            config = self.config(policy, SEARCH_SEED, *settings.overrides)
            training = self._train(config, self.given.out / "search" / name, tokens=self.given.tokens // 2, minutes=0)
            found = self._evaluate(
                self.config(policy, 0, *settings.overrides, *DEVELOPMENT),
                training.folder,
                dict.fromkeys((2, 4), self.given.development_tasks),
                split="train",
            )
            em = mean_of(scores_of(list(found.values())))
            return {"development_em": em, "steps": len(training.metrics), "seconds": training.seconds}

        return self.given.search / f"{name}.json", run

    # -- run -----------------------------------------------------------------------------------------------------

    def run_jobs(self) -> Iterator[Job]:
        """The seeds in turn, so that what is finished compares all policies; then the start under each policy."""
        for seed in self._evaluated_seeds():
            yield from (self.run_of(policy, seed) for policy in self.given.policies)

    def _evaluated_seeds(self) -> Sequence[int | None]:
        """The seeds, and None for the start."""
        return self.given.seeds if self.given.no_start else (*self.given.seeds, None)

    def run_of(self, policy: str, seed: int | None) -> Job:
        """Of a seed; None: of the start, which is not trained."""
        name = f"{policy}-start" if seed is None else f"{policy}-seed{seed}"
        sizes = dict(zip(self.given.objectives, self.given.tasks, strict=True))

        def run() -> Any:
            if seed is None:
                return {"start": self._evaluate(self.config(policy, 0), Path(self.start_of(policy)), sizes)}
            settings = self.chosen(policy)
            assert settings is not None, "the search comes first"
            config = self.config(policy, seed, *settings.overrides)
            chosen = {"learning_rate": settings.learning_rate, "turns": settings.turns}
            folder = self.trained_in(policy, seed)
            if self.given.trained_under is not None:
                reached = self._evaluate(config, folder / "tokens", sizes)
                return {**chosen, "trained_under": self.given.trained_under, "tokens": reached}
            training = self._train(config, folder, tokens=self.given.tokens, minutes=self.given.minutes)
            budgets = {"tokens": sizes}
            if self.given.minutes:
                budgets["minutes"] = {n: tasks for n, tasks in sizes.items() if n in self.given.minutes_objectives}
            return {
                **chosen,
                "steps": len(training.metrics),
                "sampled_tokens": training.tokens,
                "seconds": training.seconds,
                "rewards": [step["reward"] for step in training.metrics],
                **{budget: self._evaluate(config, folder / budget, asked) for budget, asked in budgets.items()},
            }

        return self.given.results / "runs" / f"{name}.json", run

    def trained_in(self, policy: str, seed: int) -> Path:
        """Folder of the policies that were trained under this memory, or under that of --trained-under."""
        return self.given.out / "train" / f"{self.given.trained_under or policy}-seed{seed}"

    def size_jobs(self) -> Iterator[Job]:
        """Sizes that finished runs were not evaluated on: with the policies that they left in --out."""
        for run_seed in self._evaluated_seeds():
            budget = "start" if run_seed is None else "tokens"
            for policy in self.given.policies:
                known = self._sizes(policy, run_seed, budget)
                yield from (
                    self.size_of(policy, run_seed, n, tasks)
                    for n, tasks in zip(self.given.objectives, self.given.tasks, strict=True)
                    if known and str(n) not in known
                )

    def size_of(self, policy: str, seed: int | None, objectives: int, tasks: int) -> Job:
        run = self.run_of(policy, seed)[0]

        def evaluated() -> Any:
            if seed is None:
                return self._evaluate(self.config(policy, 0), Path(self.start_of(policy)), {objectives: tasks})
            settings = self.chosen(policy)
            assert settings is not None, "the search comes first"
            folder = self.trained_in(policy, seed) / "tokens"
            if not folder.is_dir():
                sys.exit(
                    f"N = {objectives} of {run.stem} needs its policy, {folder}; move {run} away to train it again"
                )
            return self._evaluate(self.config(policy, seed, *settings.overrides), folder, {objectives: tasks})

        return self.given.results / "sizes" / f"{run.stem}-N{objectives}.json", evaluated

    def _train(self, config: Recipe, folder: Path, *, tokens: int, minutes: float) -> Training:
        """Until both budgets are used up; the policy is saved in folder/tokens and folder/minutes at either moment."""
        stage = rl_stage(config)
        sampled, seconds, metrics = 0, 0.0, list[Mapping[str, Any]]()
        kept = {"minutes"} if minutes == 0 else set[str]()
        while len(kept) < 2:
            started = time.process_time()
            with flushed_denormals():
                metrics.append(stage.step(len(metrics)))
            seconds += time.process_time() - started
            attempts = stage.config.tasks_per_step * stage.config.group_size
            sampled += round(metrics[-1]["completion_tokens"] * attempts)
            print(f"{folder.name}: step {len(metrics)}, {sampled} tokens, {seconds:.0f} s", file=sys.stderr)
            for name, used_up in (("tokens", sampled >= tokens), ("minutes", seconds >= minutes * 60)):
                if used_up and name not in kept:
                    kept.add(name)
                    stage.policy.save(folder / name)
        return Training(folder=folder / "tokens", metrics=metrics, tokens=sampled, seconds=seconds)

    def _evaluate(
        self, config: Recipe, folder: Path, sizes: Mapping[int, int], split: Split | None = None
    ) -> dict[str, Measured]:
        """By number of objectives; `sizes` maps it to a number of tasks. split: None: as --development says."""
        split = split or ("train" if self.given.development else "evaluation")
        tags = resolve(config).tags
        source = config.tasks.source(split, tags)
        policy = load_policy(folder)
        rollout, shape = make_rollout(config, policy, source), model_shape(policy.model)
        assert shape is not None
        found: dict[str, Measured] = {}
        for n, count in sizes.items():
            asked = config.evaluation.model_copy(update={"objectives": (n,), "tasks": count})
            _, attempts = evaluate(rollout, source, asked, policy=folder.name)
            found[str(n)] = _measured(attempts[n], shape, policy.codec.decode, self.given.score)
        return found


def _measured(
    attempts: Sequence[Trajectory], shape: ModelShape, decode: Callable[[Sequence[int]], str], score: str
) -> Measured:
    """What the tables need of the attempts at tasks of one size."""
    turns = [turn for t in attempts for turn in t.turns]
    by_depth = em_by_depth(attempts) if score == "em" else None
    return {
        score: [round(_of_objectives(attempt, score), 4) for attempt in attempts],
        "peak": statistics.mean(peak_tokens(t) for t in attempts),
        "peak_without_prompt": statistics.mean(peak_tokens(t, prompt=False) for t in attempts),
        "tokens": statistics.mean(total_tokens(t) for t in attempts),
        "flops": statistics.mean(forward_flops(t, shape) for t in attempts),
        "flops_with_cache": statistics.mean(forward_flops(t, shape, cached=cached_by_turn(t)) for t in attempts),
        "turns": statistics.mean(len(t.turns) for t in attempts),
        "recalls": sum(turn.action == RECALL for turn in turns) / len(attempts),
        "written": sum(map(_written, turns)) / len(turns) if turns else 0.0,
        "cost": {name: statistics.mean(attempt_cost(t, by) for t in attempts) for name, by in PRICE_CLASSES.items()},
        **({"stages": answer_stages(attempts, decode).shares} if score == "em" else {}),
        "endings": dict(Counter(t.ended.value for t in attempts)),
        **({} if by_depth is None else {"em_by_depth": by_depth}),
    }


def _of_objectives(attempt: Trajectory, score: str) -> float:
    """The mean score of an attempt's objectives; 0 where nothing was scored."""
    if score == "em":
        return solved(attempt)
    assert attempt.task is not None
    return (attempt.reward or 0.0) / attempt.task.objectives


def _written(turn: Turn) -> int:
    """Tokens of a completion, an answer aside."""
    start, stop = turn.completion_spans.get("action", (0, 0)) if turn.action == ANSWER else (0, 0)
    return len(turn.completion_ids) - (stop - start)


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    compare = Compare(given=given)
    if not given.no_search and not given.report:
        finish(compare, compare.search_jobs)
    compare.check_settings()
    if given.report:
        given.policies = [policy for policy in given.policies if compare.seeds_of(policy)]
    else:
        finish(compare, compare.run_jobs)
        finish(compare, compare.size_jobs)
    report(compare)


def finish(compare: Compare, jobs: Callable[[], Iterator[Job]]) -> None:
    """All jobs, also those that others which are finished bring about."""
    while missing := [(path, job) for path, job in jobs() if read_run(path) is None]:
        if not any(compare.done(path, job) for path, job in missing):
            time.sleep(10)  # other processes are at work on all of them


def report(compare: Compare) -> None:
    """Markdown tables and the figure, from the files."""
    given = compare.given
    if not given.policies:
        sys.exit(f"{given.results} has no results yet; run the command without --report")
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}; seeds {given.seeds}\n")
    fewer = [
        f"{policy} {len(found)}" for policy in given.policies if (found := compare.seeds_of(policy)) != given.seeds
    ]
    if fewer:
        print(f"Number of seeds, where it is smaller: {', '.join(fewer)}\n")
    scored = SCORES[given.score]
    print("| policy | learning rate | turns per question | development EM |\n|---|--:|--:|--:|")
    for policy in () if given.no_search else given.policies:
        settings = compare.chosen(policy)
        assert settings is not None
        searched = result_at(compare.trial(policy, settings)[0])
        assert searched is not None
        em = searched["development_em"]
        print(f"| {policy} | {settings.learning_rate:g} | {settings.turns} | {em:.2f} |")
    budgets = {
        **({} if given.no_start else {"start": ("Before training", given.objectives)}),
        "tokens": (f"After {given.tokens:,} sampled tokens of training", given.objectives),
    }
    if given.minutes:
        budgets["minutes"] = (f"After {given.minutes:g} minutes of training", given.minutes_objectives)
    for budget, (title, sizes) in budgets.items():
        print(f"\n{title}: {scored}, mean over seeds, [95 % interval over seeds and tasks] (each seed)\n")
        print(_table(compare, budget, sizes, lambda runs, n: _score_cell(runs)))
    first = given.policies[0]
    print(f"\n{scored.capitalize()} of {first} less that of each other, [95 % interval over tasks and seeds]\n")
    print(_differences(compare, first))
    if "em_by_depth" in compare.evaluated(given.policies[0], "tokens", given.objectives[0])[0]:
        print("\nExact match by depth of the question: 0, it refers to no other; 1, it refers to such; ...\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n: _by_depth(runs)))
    for key, title in (
        ("peak", "Peak tokens"),
        ("peak_without_prompt", "Peak tokens without the prompt"),
        ("tokens", "Tokens of all calls"),
    ):
        print(f"\n{title}\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n, key=key: f"{mean_over(runs, key):,.0f}"))
    if all("stages" in run for n in given.objectives for run in compare.evaluated(given.policies[0], "tokens", n)):
        print("\nTokens written in a turn, answers aside\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n: f"{mean_over(runs, 'written'):.1f}"))
        print("\nWhere answers are lost: found x captured x retained x read\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n: _stages(runs)))
        print("\nExact match if all that was retained had been read: found x captured x retained\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n: f"{_retained(runs):.2f}"))
        print(f"\nShare of the lead of {first} that reading all it retained would close\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n: _closed(runs, compare, n)))
        for name, by in PRICE_CLASSES.items():
            print(f"\nCost of 1,000 solved questions, {name} ({by.unit})\n")
            print(_table(compare, "tokens", given.objectives, lambda runs, n, name=name: _price(runs, name, n)))
    if any(
        run.get("recalls")
        for policy in given.policies
        for run in compare.evaluated(policy, "tokens", given.objectives[-1])
    ):
        print("\nRecalls in an attempt\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n: f"{mean_over(runs, 'recalls'):.1f}"))
    for key, title in (("flops", "without prefix caching"), ("flops_with_cache", "with prefix caching")):
        print(f"\nForward GFLOPs per solved objective, {title}\n")
        print(_table(compare, "tokens", given.objectives, lambda runs, n, key=key: per_solved(runs, key, n)))
    draw(compare, given.results / "comparison.svg")


def _table(compare: Compare, budget: str, sizes: Sequence[int], cell: Callable[[Sequence[Measured], int], str]) -> str:
    rows: dict[str, list[str]] = {}
    for policy in compare.given.policies:
        by_size = [(compare.evaluated(policy, budget, n), n) for n in sizes]
        rows[policy] = [cell(runs, n) if runs else "not run" for runs, n in by_size]
    return markdown("policy", [f"N = {n}" for n in sizes], rows)


def _differences(compare: Compare, first: str) -> str:
    """The first policy less each other, on the seeds that both have."""
    sizes = compare.given.objectives
    rows: dict[str, list[str]] = {}
    for policy in compare.given.policies:
        if policy == first:
            continue
        both = [seed for seed in compare.seeds_of(first) if seed in compare.seeds_of(policy)]
        sides = [[compare.evaluated(side, "tokens", n, both) for side in (first, policy)] for n in sizes]
        cells = [difference_cell(*map(scores_of, pair)) if all(pair) else "not run" for pair in sides]
        rows[policy] = [str(len(both)), *cells]
    return markdown("policy", ["seeds", *(f"N = {n}" for n in sizes)], rows)


def _score_cell(runs: Sequence[Measured]) -> str:
    scores = scores_of(runs)
    seeds = f" ({' '.join(f'{statistics.mean(of_seed):.2f}' for of_seed in scores)})" if len(scores) > 1 else ""
    return f"{mean_cell(scores)}{seeds}"


def _by_depth(runs: Sequence[Measured]) -> str:
    depths = runs[0]["em_by_depth"]
    return " / ".join(f"{statistics.mean(run['em_by_depth'][depth] for run in runs):.2f}" for depth in depths)


def _stages(runs: Sequence[Measured]) -> str:
    shares = [[run["stages"][name] for run in runs] for name in ("found", "captured", "retained", "read")]
    return " x ".join(f"{statistics.mean(s or 0.0 for s in of_stage):.2f}" for of_stage in shares)


def _retained(runs: Sequence[Measured]) -> float:
    """Share of the answers that are still in view in the last turn, mean over seeds."""
    return statistics.mean(
        math.prod(run["stages"][name] or 0.0 for name in ("found", "captured", "retained")) for run in runs
    )


def _closed(runs: Sequence[Measured], compare: Compare, objectives: int) -> str:
    """Of the lead in exact match that the first policy has over these runs."""
    reached = mean_of(scores_of(runs))
    lead = mean_of(scores_of(compare.evaluated(compare.given.policies[0], "tokens", objectives))) - reached
    return f"{(_retained(runs) - reached) / lead:.2f}" if lead > 0 else "no lead"


def _price(runs: Sequence[Measured], name: str, objectives: int) -> str:
    count = solved_objectives(runs, objectives)
    return f"{1000 * statistics.mean(run['cost'][name] for run in runs) / count:.3g}" if count else "none solved"


def draw(compare: Compare, path: Path) -> None:
    """Exact match, peak tokens and FLOPs a solved objective, over the number of objectives."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2), constrained_layout=True)
    sizes = compare.given.objectives
    for number, policy in enumerate(compare.given.policies):
        by_size = {n: found for n in sizes if (found := compare.evaluated(policy, "tokens", n))}
        run, runs = list(by_size), list(by_size.values())
        line = "-" if number < 10 else "--"  # there are ten colours
        style = {"label": policy, "color": f"C{number}", "linestyle": line, "marker": "o", "markersize": 3}
        scores = [scores_of(of_size) for of_size in runs]
        axes[0].plot(run, list(map(mean_of, scores)), **style)
        ends = [seeds_interval(of_size) for of_size in scores]
        axes[0].fill_between(run, [low for low, _ in ends], [high for _, high in ends], color=f"C{number}", alpha=0.15)
        axes[1].plot(run, [mean_over(of_size, "peak_without_prompt") for of_size in runs], **style)
        counts = [solved_objectives(of_size, n) for n, of_size in by_size.items()]
        cost = [mean_over(of_size, "flops") / s / 1e9 if s else None for of_size, s in zip(runs, counts, strict=True)]
        axes[2].plot(run, cost, **style)
    titles = (
        f"{SCORES[compare.given.score]}, mean of objectives",
        "peak tokens without the prompt",
        "forward GFLOPs per solved objective",
    )
    solves_some = any(line.get_ydata().size and any(y is not None for y in line.get_ydata()) for line in axes[2].lines)
    scales = ("linear", "log", "log" if solves_some else "linear")  # without a value there is nothing to take logs of
    for axis, title, scale in zip(axes, titles, scales, strict=True):
        axis.set(xscale="log", yscale=scale, title=title, xlabel="objectives N", xticks=sizes)
        axis.set_xticks(sizes, [str(n) for n in sizes])
        axis.minorticks_off()
        if scale == "log":  # a range of less than ten has no power of ten to label
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--start", default="runs/compare/warm-start/policy", help="folder of the policy that all begin with"
    )
    parser.add_argument("--start-with-notes", help="the same for memories with notes, which have tags of their own")
    parser.add_argument("--no-search", action="store_true", help="train with the first of --learning-rates, unsearched")
    parser.add_argument("--no-start", action="store_true", help="do not evaluate the start")
    parser.add_argument("--report", action="store_true", help="print what there is; run nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="for the trained policies")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--search", type=Path, help="folder of what the search found; default: RESULTS/search")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--protocol-with-notes", default="", help="[protocol] for memories with notes")
    parser.add_argument(
        "--trained-under", metavar="CONTEXT", help="train nothing; evaluate the policies of --out that this one trained"
    )
    parser.add_argument(
        "--development", action="store_true", help="with --trained-under: evaluate on the worlds that searches use"
    )
    parser.add_argument("--score", choices=SCORES, default="em", help="of a task, the mean of its objectives")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the recipe to change")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), help="memories")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1.5e-4, 3e-4, 6e-4], help="searched")
    parser.add_argument("--tokens", type=int, default=400_000, help="sampled in a training")
    parser.add_argument("--minutes", type=float, default=5, help="CPU time of a training; 0: none asked for")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train-objectives", type=int, nargs="+", default=[2])
    parser.add_argument("--objectives", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--tasks", type=int, nargs="+", default=[500] * 6, help="of each number of objectives")
    parser.add_argument("--minutes-objectives", type=int, nargs="+", default=[2, 8], help="evaluated after --minutes")
    parser.add_argument("--development-tasks", type=int, default=100)
    given = parser.parse_args()
    given.search = given.search or given.results / "search"
    if given.development and given.trained_under is None:
        parser.error("--development evaluates policies that are trained already; name their memory by --trained-under")
    if len(given.tasks) != len(given.objectives):
        parser.error(f"--tasks {given.tasks}: give one number for each of --objectives {given.objectives}")
    return given


if __name__ == "__main__":
    main()
