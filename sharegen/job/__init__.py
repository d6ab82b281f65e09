"""Jobs, which join the three wings: workload in, engine between, results out.

The only room that may know all three; the command line calls it and prints.
"""
