"""Tensors of a checkpoint as they are stored, and what is made of them when they are read."""
