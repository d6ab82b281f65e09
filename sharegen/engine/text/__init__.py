"""From tokens to text: detokenising, stop strings and why a sample ends.

Imports no torch.
"""
