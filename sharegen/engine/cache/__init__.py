"""What is stored where: the prefix tree, the blocks of the KV cache, and who owns which.

Numbers only: imports no torch; the tensors themselves are in `execute/`.
"""
