"""Quality filter: rules whose bounds are fitted on clean text of each language."""
