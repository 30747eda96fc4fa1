"""The decoder, its parts, and exact counts of what it costs."""
