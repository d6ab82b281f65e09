"""A Hugging Face model made ready: read, probed, checked and refused where it would go wrong.

Knows nothing of batches, blocks or requests.
"""
