"""Writers: where the numbers of a run go besides its own files. `writers = ["tensorboard", "wandb"]` in a recipe.

    writers = Writers(["tensorboard"], Path("runs/quick"), config={...}, tell=print)
    writers.open(kept=[])                       the steps that a resumed run has kept; none at the start
    writers.write(1, {"reward": 0.25, "endings/answered": 3.0, "timings/rollout": 1.4})
    writers.close(failed=False)

A writer that fails is left out from then on: the run goes on, and metrics.jsonl has everything.

Weights & Biases, trackio and MLflow are written to through their own libraries. None of them forgets a step that it was
given, so the steps that come again after a kill are left out, and a service keeps the numbers that it got first; those
that the kill lost on their way are written again. Where a service lives (project, server, offline) is what the
library's own environment variables say.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mem1.configuration import flatten
from mem1.durable import write_file
from mem1.errors import UserError
from mem1.net.exchange import one_line
from mem1.registry import register

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


REMEMBERED = "writers.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRun:
    """Facts about a run for its writers."""

    folder: Path
    config: Mapping[str, Any]
    """The resolved configuration as in config.toml: sections, lists, numbers and texts."""
    done: int = 0
    """Steps that the run's folder holds: 0 at the start; on resume, those up to the checkpoint."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def recall(self, writer: str) -> dict[str, Any]:
        """Returns the record of this writer in the run's folder; empty at the start."""
        path = self.folder / REMEMBERED
        return json.loads(path.read_bytes()).get(writer, {}) if path.is_file() else {}

    def remember(self, writer: str, **facts: Any) -> None:
        """Keep facts for a resumed run, such as the id of the run on a server."""
        path = self.folder / REMEMBERED
        known = json.loads(path.read_bytes()) if path.is_file() else {}
        write_file(path, json.dumps({**known, writer: {**known.get(writer, {}), **facts}}).encode())


class Writer(Protocol):
    """Made with a `WrittenRun` before the first step, on rank 0 alone. Whatever it raises, the run goes on without it.

    When a run is resumed, a new one is made and given the steps that the folder holds once more, so that none is
    missing; it leaves out those that it already has. A method `alert(text)` is optional and receives warnings.
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """The finite numbers of a step, by tag; steps count from 1 and rise by 1."""
        ...

    def close(self, failed: bool) -> None:
        """The run has ended; `failed`: by an error."""
        ...


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, run: WrittenRun) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.done = run.done
        # purge_step hides what a killed run wrote of the steps that come again
        self.events: SummaryWriter = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.done + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step <= self.done:
            return
        for tag, value in values.items():
            self.events.add_scalar(tag, value, step)
        self.events.flush()  # else a kill loses up to two minutes

    def close(self, failed: bool) -> None:
        self.events.close()


def check_writers(names: Sequence[str]) -> str:
    """Returns a line of what was found. Raises UserError where a library is missing; names the extra that brings it."""
    for name in names:
        library = getattr(register.writer.get(name), "library", None)
        if library is not None and find_spec(library) is None:
            raise UserError(
                f"writers: {name} needs {library}, which is not installed: pip install "
                f"'mem1-agents[{'train' if name == 'tensorboard' else name}]', or leave it out"
            )
    return ", ".join(names) or "none"


class Writers:
    """All writers of a run."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        *,
        config: Mapping[str, Any],
        tell: Callable[[int, str, str], None],
    ) -> None:
        """`tell` is called with the last step, the name of a writer that failed, and what became of it in one line."""
        self.names, self.folder, self.config, self.tell = names, folder, config, tell
        self.opened = False
        self._step = 0
        self._open: dict[str, Writer] = {}

    def open(self, kept: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Make the writers, and give them the steps that the run's folder holds."""
        self.opened = True
        self._step = kept[-1][0] if kept else 0
        run = WrittenRun(folder=self.folder, config=self.config, done=self._step)
        for name in self.names:
            self._try(name, lambda name=name: self._open.update({name: register.writer.get(name)(run)}))
        if self._open:
            for step, values in kept:
                self.write(step, values)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._step = step
        for name, writer in list(self._open.items()):
            self._try(name, lambda writer=writer: writer.write(step, values))

    def alert(self, text: str) -> None:
        """Hand a warning to the writers that have a way to show it."""
        for name, writer in list(self._open.items()):
            if (alert := getattr(writer, "alert", None)) is not None:
                self._try(name, lambda alert=alert: alert(text))

    def close(self, *, failed: bool) -> None:
        for name, writer in list(self._open.items()):
            self._try(name, lambda writer=writer: writer.close(failed))
        self._open.clear()

    def _try(self, name: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # whatever a library, a network or a disk raises
            writer = self._open.pop(name, None)
            why = one_line(f"{type(error).__name__}: {error}")
            if writer is not None:
                with suppress(Exception):
                    writer.close(True)
            said = f"the writer {name} failed and is left out from here on ({why}); metrics.jsonl has everything"
            self.tell(self._step, name, said)


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
