"""What is published for servers of the policy to sample with, and how one of them says that it has it or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """Weights in the shared folder."""

    version: int
    path: Path
    """Of the file, in a folder of its own in the shared one."""
    checksum: str

    @property
    def name(self) -> str:
        """Relative to the shared folder: weights-000003/model.safetensors"""
        return f"{self.path.parent.name}/{self.path.name}"


class ServerFailed(Exception):
    """A server did not do what it was asked; the message says what it answered."""


class NotSaid(Exception):
    """A server has no route that says which weights it has."""
