"""Questions and passages from files: our own form, public data sets as they are published, composed tasks."""

from mem1.tasks.datasets.reading import FORMATS, Dataset, read_dataset, read_questions, read_tasks
from mem1.tasks.datasets.splits import split_of
from mem1.tasks.datasets.writing import write_passages, write_questions, write_tasks

__all__ = [
    "FORMATS",
    "Dataset",
    "read_dataset",
    "read_questions",
    "read_tasks",
    "split_of",
    "write_passages",
    "write_questions",
    "write_tasks",
]
