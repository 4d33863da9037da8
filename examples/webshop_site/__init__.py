"""The shop as a web site for people: shopping by hand, explained rewards, replayed recordings."""
