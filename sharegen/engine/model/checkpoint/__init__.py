"""Where a checkpoint is and how its files are read: folders, adapters, tensors that nobody read yet."""
