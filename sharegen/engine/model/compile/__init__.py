"""What makes a model's own code fast on a GPU: torch.compile, stacks of layers, fused parts."""
