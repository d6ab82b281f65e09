"""Local files of rows: what kind a file is, and how its rows are read, once, as they are now."""
