"""Measurements that a clone makes and a wheel leaves out: papers, FP8, preemption, dealing, hosts."""
