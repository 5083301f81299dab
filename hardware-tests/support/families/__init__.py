"""One module a family of formats: which variants there are for a width, and how a random weight of it is stored."""
