"""The shop as a web page for people: shopping by hand, rewards explained, recordings replayed."""
