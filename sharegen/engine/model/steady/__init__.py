"""A row's bits, whatever other rows a forward has: products are tried, and held to one order."""
