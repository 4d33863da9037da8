"""Weights & Biases, trackio and MLflow as writers (`mem1.training.monitoring.writers`): each through its own library.

None of them forgets a step that it was given, so the steps that come again after a kill are left out, and a service
keeps the numbers that it got first; those that the kill lost on their way are written again. Where a service lives
(project, server, offline) is what the library's own environment variables say.
"""

from __future__ import annotations

import io
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from mem1.configuration import flatten
from mem1.training.monitoring.writers import WrittenRun

PROJECT = "mem1"
"""Project or experiment where the library's environment variable names none."""


class Wandb:
    """A run of Weights & Biases, with its files in RUN/wandb; W&B's own id of the run is kept for a resume."""

    library = "wandb"

    def __init__(self, run: WrittenRun) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        name = run.recall("wandb").get("id") or secrets.token_hex(4)
        run.remember("wandb", id=name)
        self.service: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=name,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.config),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        # a server knows its last step. Offline each process writes a file of its own, and that of a killed one is not
        # whole: so the newest, to which RUN/wandb/latest-run points, has all steps
        self.next: int = 0 if self.service.offline else self.service.step

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self.next:
            self.service.log(dict(values), step=step)

    def alert(self, text: str) -> None:
        self.service.alert("mem1", text, level="WARN")

    def close(self, failed: bool) -> None:
        self.service.finish(exit_code=int(failed))


class Trackio:
    """A run of trackio, in its local database unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says otherwise."""

    library = "trackio"

    def __init__(self, run: WrittenRun) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        name = run.recall("trackio").get("name") or f"{run.name}-{secrets.token_hex(3)}"  # it resumes by name
        run.remember("trackio", name=name)
        with redirect_stdout(io.StringIO()):  # where only results belong
            self.service: Any = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=name,
                config=flatten(run.config),
                resume="allow",
            )
        self.next: int = self.service._next_step  # of a run that is resumed: after its last

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self.next:
            self.service.log(dict(values), step=step)

    def alert(self, text: str) -> None:
        with redirect_stdout(io.StringIO()):
            self.service.alert("mem1", text)

    def close(self, failed: bool) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        with redirect_stdout(io.StringIO()):
            trackio.finish()  # the run's own finish() would be called again when the process ends


class MLflow:
    """A run of MLflow, in the store of MLFLOW_TRACKING_URI or MLflow's default one."""

    library = "mlflow"
    _MOST_PARAMETERS = 100
    """A request takes so many, each of at most 6,000 characters."""

    def __init__(self, run: WrittenRun) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        self.client = MlflowClient()
        self.id: str | None = run.recall("mlflow").get("id")
        self.resumed = self.id is not None
        if self.id is not None:
            self.client.update_run(self.id, status="RUNNING")
        else:
            self.id = self._new(run)
            run.remember("mlflow", id=self.id)
        self.last: dict[str, int] = {}
        """Last step by tag, as the store of a resumed run says."""

    def _new(self, run: WrittenRun) -> str:
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self.client.create_experiment(name)
        made = self.client.create_run(experiment, run_name=run.name).info.run_id
        parameters = [Param(key.replace('"', ""), str(value)[:6000]) for key, value in flatten(run.config).items()]
        for start in range(0, len(parameters), self._MOST_PARAMETERS):
            self.client.log_batch(made, params=parameters[start : start + self._MOST_PARAMETERS])
        return made

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        assert self.id is not None
        now = int(time.time() * 1000)
        fresh = [Metric(tag, value, now, step) for tag, value in values.items() if step > self._last_step(tag)]
        if fresh:
            self.client.log_batch(self.id, metrics=fresh)

    def _last_step(self, tag: str) -> int:
        """A batch may have been cut by a kill, so each tag has its own."""
        if self.resumed and tag not in self.last:
            history = self.client.get_metric_history(self.id, tag)
            self.last[tag] = max((metric.step for metric in history), default=0)
        return self.last.get(tag, 0)

    def close(self, failed: bool) -> None:
        self.client.set_terminated(self.id, status="FAILED" if failed else "FINISHED")
