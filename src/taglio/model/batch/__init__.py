"""Follow the batch dimension through a graph: do the rows of a batch keep apart? Runs nothing and knows no requests."""
