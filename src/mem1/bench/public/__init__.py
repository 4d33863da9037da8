"""Public benchmarks beside ours: files that a user has downloaded, as tasks or as results."""
