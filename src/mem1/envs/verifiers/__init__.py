"""Environments of the package verifiers (docs/extending/verifiers.md). Nothing is imported here: it takes seconds."""
