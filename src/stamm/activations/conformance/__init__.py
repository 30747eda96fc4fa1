"""Whether an implementation computes what its spec defines: reference values, golden vectors, a judge."""
