"""Drawing, tables, theme and the frame of a page; no subject is known here."""
