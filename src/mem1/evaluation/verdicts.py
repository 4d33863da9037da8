"""Verdicts of a judge on disk, one JSON object a line, so that a repeat is free and gives the same.

verdicts = Verdicts("runs/a/verdicts.jsonl", model="qwen3-32b")
verdicts.get(asked)              ->  None: not judged yet, by this model with this version of the prompt
verdicts.put(asked, True)        appended at once: a killed run loses none but the line it was writing
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from mem1.errors import UserError
from mem1.evaluation.judge_prompt import JUDGE_VERSION, Asked
from mem1.jsonl import append_objects, drop_cut_line, read_objects


class Verdicts:
    """Of one model; safe for threads. Without a path they live as long as the process."""

    def __init__(self, path: str | os.PathLike[str] | None, *, model: str) -> None:
        """Raises UserError, naming file and line, where the file cannot be read or holds something else."""
        self.model = model
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._known: dict[Asked, bool] = {}
        if self._path is not None and self._path.is_file():
            drop_cut_line(self._path)  # it is asked for again
            for number, record in read_objects(self._path):
                self._read(record, f"{self._path}:{number}")

    def get(self, asked: Asked) -> bool | None:
        return self._known.get(asked)

    def put(self, asked: Asked, correct: bool) -> None:
        """Raises UserError where the file cannot be written."""
        with self._lock:
            self._known[asked] = correct
            if self._path is not None:
                _make_folder(self._path.parent)
                append_objects(self._path, [{**self._fields(asked), "correct": correct}], drop_cut_line=True)

    def _fields(self, asked: Asked) -> dict[str, Any]:
        return {
            "version": JUDGE_VERSION,
            "model": self.model,
            "question": asked.question,
            "golds": list(asked.golds),
            "prediction": asked.prediction,
        }

    def _read(self, record: dict[str, Any], where: str) -> None:
        try:
            asked = Asked(record["question"], tuple(record["golds"]), record["prediction"])
            of_this_judge = (record["version"], record["model"]) == (JUDGE_VERSION, self.model)
            correct = record["correct"]
        except (KeyError, TypeError) as error:
            raise UserError(f"{where}: not the verdict of a judge ({error!r}); repair or delete the file") from error
        if not isinstance(correct, bool):
            raise UserError(f"{where}: the verdict is {correct!r}, not true or false; repair or delete the file")
        if of_this_judge:
            self._known[asked] = correct


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {path}: {error.strerror or error}; choose another folder") from error
