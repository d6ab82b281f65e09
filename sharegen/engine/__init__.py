"""How to decode: tree, pool, scheduler, model, attention, sampling loop."""
