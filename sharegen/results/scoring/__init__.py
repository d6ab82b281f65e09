"""Programs found, run and judged; pass@k."""
