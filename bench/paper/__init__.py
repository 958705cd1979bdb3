"""Tables and figures of the papers, and further measurements beside them."""
