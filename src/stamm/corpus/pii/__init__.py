"""Personal data in text: found by form and check digits, replaced by a marker, counted, never kept."""
