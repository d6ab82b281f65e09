"""What travels between the rooms of the engine: requests, batches, completions, keys."""
