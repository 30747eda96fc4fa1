"""Personal data (PII) in text: found by form and check digits, replaced by markers, never stored."""
