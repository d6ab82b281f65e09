"""Tensor parallelism: the plan, the shards, and the collectives between ranks."""
