"""A model cut among ranks: the plan, the parts, and what the ranks say to each other."""
