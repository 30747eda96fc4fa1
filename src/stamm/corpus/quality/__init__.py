"""Rules of quality, with bounds that each language's own clean text sets."""
