"""The page about one activation: its curves, figures, text."""
