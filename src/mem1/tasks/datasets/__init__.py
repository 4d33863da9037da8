"""Questions and passages from files: our own format, public data sets as published, composed tasks."""

from mem1.tasks.datasets.own import write_passages, write_questions, write_tasks
from mem1.tasks.datasets.reading import FORMATS, Dataset, read_dataset, read_questions, read_tasks

__all__ = [
    "FORMATS",
    "Dataset",
    "read_dataset",
    "read_questions",
    "read_tasks",
    "write_passages",
    "write_questions",
    "write_tasks",
]
