"""What is done in the graph of compiled layers: kernels of ours in the place of several."""
