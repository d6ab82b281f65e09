"""Weights in MXFP4: their numbers, and products with them as a checkpoint has them."""
