"""Weights in FP8: products, which weights become FP8 and how, checkpoints that are FP8 already."""
