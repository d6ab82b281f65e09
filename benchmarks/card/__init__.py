"""A card's worth of rows in one call: `python -m benchmarks card`."""
