"""Chat: conversations, the format in which a model reads them, and reading its answers back."""
