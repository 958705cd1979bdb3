"""Tables and figures of the papers, and what stands beside them."""
