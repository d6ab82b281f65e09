"""Samples as other tools read them."""
