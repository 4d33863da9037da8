"""A policy: weights, tokenizer, and how it speaks. What evaluation, serving and training share."""
