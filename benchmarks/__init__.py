"""Measurements that a clone makes and a wheel leaves out: `python -m benchmarks`."""
