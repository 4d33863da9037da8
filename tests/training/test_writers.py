"""Writers: what they are given, what a resume repeats, and that none of them can stop a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from datastores import wandb_history

import mem1
from mem1.errors import UserError
from mem1.recipe.recipe import Recipe
from mem1.training.monitoring.metrics_log import MetricsLog
from mem1.training.monitoring.writers import Writers, WrittenRun, check_writers

CONFIG = {"seed": 3, "rl": {"learning_rate": 0.1, "curriculum": [{"steps": 2}]}}
NUMBERS = {"reward": 0.5, "endings": {"answered": 3.0}, "none": None}
TAGS = ["endings/answered", "reward", "timings/rollout"]


class Notes:
    """A writer that keeps everything; `runs` are all that were made, first to last."""

    runs: ClassVar[list[Notes]] = []

    def __init__(self, run: WrittenRun) -> None:
        self.run = run
        self.rows: dict[int, dict[str, float]] = {}
        self.closed: bool | None = None
        Notes.runs.append(self)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.rows[step] = dict(values)

    def alert(self, text: str) -> None:
        self.rows[-1] = {text: 1.0}

    def close(self, failed: bool) -> None:
        self.closed = failed


class Broken(Notes):
    """Fails from the second step on."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step > 1:
            raise ConnectionError("no route\nto the host")
        super().write(step, values)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Notes, "runs", [])
    with pytest.MonkeyPatch.context() as names:
        for name, thing in (("notes", Notes), ("broken", Broken)):
            names.setitem(mem1.register.writer._registered, name, thing)
        yield


def log_steps(
    folder: Path, *names: str, steps: range, kept: int = 0, fails: bool = False
) -> list[tuple[int, str, str]]:
    """Log steps as a run does that has kept some; returns what was said of failing writers."""
    said: list[tuple[int, str, str]] = []
    writers = Writers(names, folder, config=CONFIG, tell=lambda *message: said.append(message))
    try:
        with MetricsLog(folder, writers) as log:
            log.truncate_after(kept)
            log.open_writers()
            for step in steps:
                log.append(step, {**NUMBERS, "reward": step / 2}, timings={"rollout": 1.5})
            if fails:
                raise KeyError("the training")
    except KeyError:
        pass
    return said


def test_a_writer_is_given_the_run_its_configuration_and_every_number_by_tag(tmp_path: Path):
    (tmp_path / "quick").mkdir()
    assert log_steps(tmp_path / "quick", "notes", steps=range(1, 3)) == []
    (writer,) = Notes.runs
    assert (writer.run.name, writer.run.config, writer.run.done) == ("quick", CONFIG, 0)
    assert writer.rows == {
        step: {"reward": step / 2, "endings/answered": 3.0, "timings/rollout": 1.5} for step in (1, 2)
    }
    assert writer.closed is False


def test_a_resumed_run_gives_its_new_writer_each_step_once_more(tmp_path: Path):
    log_steps(tmp_path, "notes", steps=range(1, 5), fails=True)
    log_steps(tmp_path, "notes", steps=range(3, 6), kept=2)
    broken_off, resumed = Notes.runs
    assert (broken_off.closed, resumed.run.done) == (True, 2)
    assert list(resumed.rows) == [1, 2, 3, 4, 5]
    assert resumed.rows[1] == broken_off.rows[1], "timings included"


def test_a_writer_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path):
    said = log_steps(tmp_path, "broken", "notes", steps=range(1, 5))
    why = "ConnectionError: no route to the host"
    assert said == [
        (2, "broken", f"the writer broken failed and is left out from here on ({why}); metrics.jsonl has everything")
    ]
    broken, notes = Notes.runs
    assert (list(broken.rows), broken.closed) == ([1], True)
    assert (list(notes.rows), notes.closed) == ([1, 2, 3, 4], False)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_writer_that_cannot_be_made_is_left_out(tmp_path: Path):
    def refuse(run: WrittenRun) -> Notes:
        raise PermissionError("not logged in")

    mem1.register.writer._registered["refuse"] = refuse
    ((step, name, text),) = log_steps(tmp_path, "refuse", "notes", steps=range(1, 3))
    assert (step, name) == (0, "refuse") and "PermissionError: not logged in" in text
    assert list(Notes.runs[0].rows) == [1, 2]


def test_a_library_that_is_not_installed_is_named_with_its_extra_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = mem1.load_recipe("atlas-quick", 'writers=["tensorboard", "wandb"]')
    with pytest.raises(
        UserError, match=r"wandb needs wandb, which is not installed: pip install 'mem1-agents\[wandb\]'"
    ):
        mem1.train(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["tensorbord"], "unknown writer 'tensorbord' .did you mean tensorboard.*; known: tensorboard, wandb"),
        (["notes", "notes"], "twice"),
    ],
)
def test_names_are_checked_with_the_recipe(names: list[str], message: str):
    with pytest.raises(UserError, match=message):
        mem1.load_recipe("atlas-quick", f"writers={json.dumps(names)}")


def test_the_default_is_tensorboard():
    assert mem1.load_recipe("atlas-quick").writers == Recipe.model_fields["writers"].default == ("tensorboard",)
    assert check_writers(["tensorboard", "notes"]) == "tensorboard, notes"


class TestServices:
    """Each library in its offline mode, where it is installed; the numbers are read back from what it stored."""

    @pytest.fixture(autouse=True)
    def offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
        monkeypatch.chdir(tmp_path)

    def broken_off_and_resumed(self, tmp_path: Path, name: str) -> Path:
        """A run of 5 steps that ended in step 4 with a checkpoint of step 2."""
        folder = tmp_path / "quick"
        folder.mkdir()
        assert log_steps(folder, name, steps=range(1, 5), fails=True) == []
        assert log_steps(folder, name, steps=range(3, 6), kept=2) == []
        return folder

    def test_wandb(self, tmp_path: Path):
        wandb = pytest.importorskip("wandb")
        folder = self.broken_off_and_resumed(tmp_path, "wandb")
        wandb.teardown()  # its process has then written everything
        run = wandb_history(next((folder / "wandb" / "latest-run").glob("*.wandb")))
        assert run.id == json.loads((folder / "writers.json").read_text())["wandb"]["id"]
        assert (run.name, run.config["seed"], run.config["rl"]) == ("quick", 3, CONFIG["rl"])
        assert run.rows == {
            step: {"reward": step / 2, "endings/answered": 3.0, "timings/rollout": 1.5} for step in range(1, 6)
        }

    def test_trackio(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        pytest.importorskip("trackio")
        from trackio import sqlite_storage, utils  # pyright: ignore[reportMissingImports]

        for module in (sqlite_storage, utils):  # which read the variable when they are imported
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
        folder = self.broken_off_and_resumed(tmp_path, "trackio")
        name = json.loads((folder / "writers.json").read_text())["trackio"]["name"]
        assert sqlite_storage.SQLiteStorage.get_runs("mem1") == [name] and name.startswith("quick-")
        rows = sqlite_storage.SQLiteStorage.get_logs("mem1", name)
        assert [(row["step"], *(row[tag] for tag in TAGS)) for row in rows] == [
            (step, 3.0, step / 2, 1.5) for step in range(1, 6)
        ]
        config: Any = sqlite_storage.SQLiteStorage.get_run_config("mem1", name)
        assert (config["seed"], config["rl.learning_rate"]) == (3, 0.1)
        assert capsys.readouterr().out == ""

    def test_mlflow(self, tmp_path: Path):
        mlflow = pytest.importorskip("mlflow")
        folder = self.broken_off_and_resumed(tmp_path, "mlflow")
        client = mlflow.MlflowClient()
        (run,) = client.search_runs([client.get_experiment_by_name("mem1").experiment_id])
        assert run.info.run_id == json.loads((folder / "writers.json").read_text())["mlflow"]["id"]
        assert (run.info.run_name, run.info.status) == ("quick", "FINISHED")
        assert (run.data.params["seed"], run.data.params["rl.learning_rate"]) == ("3", "0.1")
        assert sorted(run.data.metrics) == TAGS
        history = client.get_metric_history(run.info.run_id, "reward")
        assert [(metric.step, metric.value) for metric in history] == [(step, step / 2) for step in range(1, 6)]
