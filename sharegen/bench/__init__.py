"""Measuring sharegen against its peers."""
