"""Pages and pictures made of the files in `benchmarks/results/`: `python -m benchmarks tables`."""
