"""Where a checkpoint lies and how its files are read: folders, adapters, GGUF."""
