"""What a recipe will need, before it is run: memory, tokens, FLOPs, time; and whether everything it names is there."""
