"""What makes a start quick: less that is imported, and weights that are read and moved sooner."""
