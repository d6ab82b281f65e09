"""Layers that keep a state: convolutions and recurrences."""
