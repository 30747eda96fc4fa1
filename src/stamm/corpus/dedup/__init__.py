"""Deduplication over all shards of a corpus: exact duplicates, and near-duplicates by MinHash."""
