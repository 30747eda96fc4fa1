"""Whether an implementation computes what its spec says: the truth, golden vectors, a judge."""
