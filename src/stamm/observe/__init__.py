"""Statistics of the feed-forward layers of a trained model, over a text."""
