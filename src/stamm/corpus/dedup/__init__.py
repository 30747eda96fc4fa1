"""Documents that say the same: exactly, or nearly, over all shards of a corpus."""
