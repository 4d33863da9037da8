"""What a run shows: a table on the terminal and one self-contained HTML page."""
