"""Every configuration of a recipe. Nothing here loads torch or transformers."""
