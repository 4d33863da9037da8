"""`mem1 bench`: how much of a long task a model and its memory keep, on tasks that nobody can have memorised."""
