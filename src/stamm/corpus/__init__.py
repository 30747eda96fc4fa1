"""From raw pages to token shards: consent, text, personal data, duplicates, vocabulary, order."""
