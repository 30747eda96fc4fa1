"""Readers of documents: WARC, tar and zip archives, tables, JSON lines, repositories."""
