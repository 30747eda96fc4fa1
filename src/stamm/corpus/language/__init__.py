"""Language identification: the declared language of a page, CLD2, and a fastText model."""
