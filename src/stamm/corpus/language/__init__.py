"""Which language a text is in: what its page declares, and what its letters say."""
