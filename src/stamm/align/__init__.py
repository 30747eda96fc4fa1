"""Alignment: supervised fine-tuning, preference optimization, and the data that both read."""
