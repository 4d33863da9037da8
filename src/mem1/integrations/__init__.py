"""Adapters to other projects' trainers; each imports its project in files of its own, which nothing else imports."""
